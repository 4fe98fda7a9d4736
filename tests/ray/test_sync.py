"""A sampler's group that gets its weights from a model's group: what one process samples."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from twinkle import InternalError, InvalidError, LoraConfig, TorchSampler, TransformersModel
from twinkle.checkpoint_engine import CheckpointEngineManager

GRPO = Path(__file__).with_name("grpo.py")


@pytest.mark.parametrize(("model_ranks", "sampler_ranks"), [(1, 1), (2, 1), (1, 2)])
def test_grpo_over_two_groups_samples_and_trains_as_one_process(
    model_ranks, sampler_ranks, cluster, tiny_llama_dir
):
    alone = cluster.run([GRPO, tiny_llama_dir, 3, 0, 0]).stdout.splitlines()[-1]
    together = cluster.run([GRPO, tiny_llama_dir, 3, model_ranks, sampler_ranks])
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


def test_a_side_that_cannot_begin_is_told_to_the_other(driver, tiny_llama_dir):
    with driver(model=1, sampler=1):
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


def test_managers_that_share_a_model_take_turns(driver, tiny_llama_dir):
    with driver(model=1, sampler=1):
        model = TransformersModel(model_id=tiny_llama_dir, remote_group="model")
        model.add_adapter_to_model("default", LoraConfig(r=4))
        samplers = [TorchSampler(model_id=tiny_llama_dir, remote_group="sampler") for _ in range(2)]
        managers = [CheckpointEngineManager(model, samplers[i]) for i in (0, 1, 1)]
        with ThreadPoolExecutor() as threads:
            for done in [threads.submit(manager.sync_weights) for manager in managers]:
                done.result(timeout=60)
        managers[0].sync_weights()  # its ranks have met others since
        managers[1].sync_weights()
