"""A sampler's group that gets its weights from a model's group: what one process samples."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from parallel.processes import printed_by

from twinkle import InternalError, InvalidError, LoraConfig, TorchSampler, TransformersModel
from twinkle.checkpoint_engine import CheckpointEngineManager

GRPO = Path(__file__).with_name("grpo.py")
STEPS = 2  # the second samples with weights that the first has changed


@pytest.fixture(scope="module")
def alone(tiny_llama_dir):
    """The last line that one process prints."""
    return printed_by(GRPO, tiny_llama_dir, STEPS, 0, 0).splitlines()[-1]


@pytest.fixture(scope="module")
def pair(driver):
    """This process is a driver with a group for the model and one for the sampler."""
    with driver(model=1, sampler=1):
        yield


@pytest.mark.parametrize(
    ("model_ranks", "sampler_ranks"),
    [(2, 1), (1, 2), pytest.param(1, 1, marks=pytest.mark.soak)],
)
def test_grpo_over_two_groups_samples_and_trains_as_one_process(
    model_ranks, sampler_ranks, alone, cluster, tiny_llama_dir
):
    together = cluster.run([GRPO, tiny_llama_dir, STEPS, model_ranks, sampler_ranks])
    assert together.stdout.splitlines()[-1] == alone
    steps = json.loads(alone)
    assert steps[0][0] != steps[1][0] and all(step[2] > 0 for step in steps)


def meet(sender, receiver):
    address = sender.prepare_checkpoint_engine()
    receiver.finalize_checkpoint_engine()
    arguments = {"address": address, "world_size": 2, "num_senders": 1}
    sent = sender.init_checkpoint_process_group(rank=0, **arguments)
    receiver.init_checkpoint_process_group(rank=1, **arguments)()
    sent()


def test_a_side_that_cannot_begin_is_told_to_the_other(pair, tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir, remote_group="model")
    model.add_adapter_to_model("default", LoraConfig(r=4))
    sampler = TorchSampler(model_id=tiny_llama_dir, remote_group="sampler")
    other = TransformersModel(model_id=tiny_llama_dir, remote_group="sampler")
    sharing = TorchSampler(model=other, remote_group="sampler")

    meet(model, sampler)
    sent, received = model.send_weights(adapter_name="none"), sampler.receive_weights()
    with pytest.raises(InvalidError, match="there is no adapter 'none'"):
        sent()
    with pytest.raises(InternalError) as left:
        received()
    assert "rank 0 has left the others" in str(left.value)  # and no time that ran out
    meet(model, sharing)
    sent, received = model.send_weights(), sharing.receive_weights()
    with pytest.raises(InvalidError, match="weights it need not receive"):
        received()
    with pytest.raises(InternalError) as left:
        sent()
    assert "rank 1 has left the others" in str(left.value)

    meet(model, sampler)
    sent, received = model.send_weights(), sampler.receive_weights()
    assert sent()[0]["num_bytes"] == received()[0]["num_bytes"] > 0


def test_managers_that_share_a_model_take_turns(pair, tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir, remote_group="model")
    model.add_adapter_to_model("default", LoraConfig(r=4))
    samplers = [TorchSampler(model_id=tiny_llama_dir, remote_group="sampler") for _ in range(2)]
    managers = [CheckpointEngineManager(model, samplers[i]) for i in (0, 1, 1)]
    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(manager.sync_weights) for manager in managers]:
            done.result(timeout=60)
    managers[0].sync_weights()  # its ranks have met others since
    managers[1].sync_weights()


def within(seconds, call):
    """Raises what the call raises, if anything. The call may not take longer."""
    raised = []

    def run():
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"it has not ended in {seconds} s"
    if raised:
        raise raised[0]


def test_a_call_that_fails_unseen_is_told_by_the_sync_and_neither_side_waits(
    pair, tiny_llama_dir, monkeypatch
):
    """Last: it leaves the groups to what one of them was not told."""
    ids = list(range(5, 15))
    rows = [{"input_ids": ids, "labels": [*ids[1:], -100]}] * 2

    def late(inputs, outputs):
        time.sleep(2)  # until sync_weights has been called
        raise ValueError("a reward is missing")

    model = TransformersModel(model_id=tiny_llama_dir, remote_group="model")
    model.add_adapter_to_model("default", LoraConfig(r=4, target_modules="all-linear"))
    model.set_optimizer("AdamW", lr=0.1)
    sampler = TorchSampler(model_id=tiny_llama_dir, remote_group="sampler")
    manager = CheckpointEngineManager(model, sampler)
    for _ in range(2):  # the second time they have met
        model.set_loss(late)
        model.forward_backward(inputs=rows)
        with pytest.raises(ValueError, match=r"missing \(rank 0 of group model, .*") as caught:
            within(60, manager.sync_weights)
        assert "forward_backward at test_sync.py:" in str(caught.value)
        model.set_loss("CrossEntropyLoss")
        within(60, manager.sync_weights)
    for seconds in (0, 2):
        sampler.sample([{"input_ids": [5, 999999]}], max_tokens=2)
        time.sleep(seconds)
        with pytest.raises(InvalidError, match=r"999999.* of group sampler, .* at test_sync"):
            within(60, manager.sync_weights)
        within(60, manager.sync_weights)
    before = sampler.sample([{"input_ids": [5, 6]}], max_tokens=8, temperature=0)()
    model.forward_backward(inputs=rows)
    model.clip_grad_and_step()
    within(60, manager.sync_weights)
    after = sampler.sample([{"input_ids": [5, 6]}], max_tokens=8, temperature=0)()
    assert before[0].sequences[0].tokens != after[0].sequences[0].tokens

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sampler.group, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        within(60, manager.sync_weights)
    monkeypatch.undo()
    with pytest.raises(InternalError, match="send_weights for another group, which was not"):
        within(60, model.get_train_configs)
