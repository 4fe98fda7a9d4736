"""A client's training: the bits of the local classes, and files of them."""

import threading

import numpy as np
import pytest
from features import drawn
from service.twinkle.conftest import reference, with_adapter

from twinkle.data_format import LoraConfig
from twinkle.errors import ConflictError, InvalidError
from twinkle.model import TransformersModel
from twinkle_client.model import MultiLoraTransformersModel
from twinkle_client.sampler import vLLMSampler

LORA = LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1)
TIMED = ("total time elapse", "speed", "tokens/s")


def bits(value):
    """A result whose equality is that of bits: arrays and tensors as bytes, times left out."""
    if isinstance(value, dict):
        return {k: bits(v) for k, v in value.items() if k not in (*TIMED, "scored_by")}
    if hasattr(value, "shape"):
        array = np.asarray(value)
        return array.dtype.name, array.shape, array.tobytes()
    return float(value) if isinstance(value, float) else value


@pytest.fixture
def both(client, local):
    """both(steps): what steps(model) gives of the client's model, and of the local one."""
    remote = MultiLoraTransformersModel("tiny")

    def run(steps):
        far, near = bits(steps(remote)), bits(steps(local))
        assert far.keys() == near.keys()
        for name in near:
            assert far[name] == near[name], name
        return near

    return run


def test_steps_of_supervised_training(both):
    def steps(model):
        found, name = {}, {"adapter_name": "sft"}
        model.add_adapter_to_model("sft", LORA, gradient_accumulation_steps=2)
        model.set_loss("CrossEntropyLoss", **name)
        model.set_optimizer("AdamW", lr=1e-2, **name)
        model.set_lr_scheduler("CosineWarmupScheduler", num_warmup_steps=1, num_training_steps=4,
                               **name)  # fmt: skip
        model.add_metric("Accuracy", is_training=True, **name)
        model.set_processor("InputProcessor", padding_side="right", **name)
        for step in range(6):
            rows = drawn([9, 17, 5], seed=step)
            found[f"passed {step}"] = dict(model.forward_backward(inputs=rows, **name))
            found[f"norm {step}"] = model.clip_grad_and_step(max_grad_norm=0.5, **name)
        found["metrics"] = dict(model.calculate_metric(is_training=True, **name))
        found["evaluated"] = dict(model.forward_only(inputs=drawn([12], seed=9), **name))
        found["loss"] = model.calculate_loss(**name)
        found["eval"] = dict(model.calculate_metric(is_training=False, **name))
        found["weights"] = dict(model.get_state_dict(**name))
        return found

    found = both(steps)
    assert [found[f"norm {step}"] is None for step in range(6)] == [True, False] * 3
    assert found["passed 0"]["logps"][1] == (3, 17) and "iters" in found["metrics"]


def test_every_verb_of_a_step_by_itself_and_logits(both):
    def steps(model):
        found, name = {}, {"adapter_name": "verbs"}
        model.add_adapter_to_model("verbs", LORA)
        model.set_optimizer("AdamW", lr=1e-2, **name)
        for step in range(2):
            rows = drawn([6, 11], seed=step)
            found[f"out {step}"] = dict(model.forward(inputs=rows, return_logits=True, **name))
            found[f"loss {step}"] = model.calculate_loss(**name)
            model.backward(**name)
            found[f"norm {step}"] = model.clip_grad_norm(1.0, **name)
            model.step(**name)
            model.zero_grad(**name)
            model.lr_step(**name)
        found["config lines"] = model.get_train_configs(**name).split("\n")[2:]
        return found

    assert both(steps)["out 1"]["logits"][1][:2] == (2, 11)


def test_preferences_with_the_base_as_reference(both):
    def steps(model):
        name = {"adapter_name": "dpo"}
        model.add_adapter_to_model("dpo", LORA)
        model.set_loss("DPOLoss", beta=0.2, **name)
        model.set_optimizer("AdamW", lr=1e-2, **name)
        model.add_metric("DPOMetric", beta=0.2, **name)
        found = {}
        for step in range(2):
            rows = drawn([8, 9, 14, 7], seed=step)
            scored = model.forward_only(inputs=rows, disable_lora=True, **name)
            ref = getattr(scored, "result", scored)
            found[f"passed {step}"] = dict(
                model.forward_backward(inputs=rows, ref_outputs=ref, **name)
            )
            model.clip_grad_and_step(**name)
        return found | {"metrics": dict(model.calculate_metric(**name))}

    both(steps)


def test_embeddings(both):
    def steps(model):
        name = {"adapter_name": "embedding"}
        model.add_adapter_to_model("embedding", LORA)
        model.set_loss("InfonceLoss", temperature=0.1, use_batch=True, **name)
        model.set_optimizer("AdamW", lr=1e-2, **name)
        model.add_metric("EmbeddingMetric", is_training=True, **name)
        rows = [dict(row, labels=[1 - i % 2]) for i, row in enumerate(drawn([5, 8, 6, 9]))]
        found = {}
        for step in range(2):
            passed = model.forward_backward(inputs=rows, task="embedding", **name)
            found[f"passed {step}"] = dict(passed)
            model.clip_grad_and_step(**name)
        return found | {"metrics": dict(model.calculate_metric(**name))}

    both(steps)


def test_rewards_of_what_was_sampled(client, local, tmp_path):
    """The loop of GRPO: save for the sampler, sample there, learn from the replies."""
    from twinkle.sampler import vLLMSampler as Local

    prompts = [{"input_ids": row["input_ids"][:6]} for row in drawn([6, 7], seed=3)]
    params = {"max_tokens": 5, "num_samples": 2, "logprobs": 1, "temperature": 0.9}

    def steps(model, sampler, where):
        model.add_adapter_to_model("grpo", LORA)
        model.set_loss("GRPOLoss", epsilon=0.2, adapter_name="grpo")
        model.set_optimizer("AdamW", lr=1e-2, adapter_name="grpo")
        found = {}
        for step in range(2):
            responses = sampler.sample(prompts, params, **where(model))
            replies = [one for each in responses for one in each.sequences]
            old = [[token[0][1] for token in reply.logprobs] for reply in replies]
            features = [reply.new_input_feature for reply in replies]
            found[f"replies {step}"] = [(r.tokens, r.stop_reason, r.decoded) for r in replies]
            found[f"old {step}"] = old
            found[f"passed {step}"] = dict(model.forward_backward(
                inputs=features, old_logps=old, advantages=[1.0, -1.0, 0.5, -0.5], temperature=0.9,
                adapter_name="grpo"))  # fmt: skip
            model.clip_grad_and_step(adapter_name="grpo")
        return bits(found)

    def saved_there(model):
        return {"adapter_uri": model.save("for-sampler", is_sampler=True)}

    def saved_here(model):
        path = model.save("grpo", str(tmp_path), adapter_name="grpo")
        return {"adapter_path": path, "return_encoded": True}

    far = steps(MultiLoraTransformersModel("tiny"), vLLMSampler("tiny"), saved_there)
    assert far == steps(local, Local(model=local), saved_here)
    kept = client.list_checkpoints(f"{client.session_id}-grpo")
    assert [each.checkpoint_type for each in kept] == ["sampler"]  # the older one has gone


def test_responses_are_inputs_and_the_adapter_as_it_is_can_be_sampled(model):
    sampler = vLLMSampler("tiny")
    params = {"max_tokens": 4, "temperature": 0, "logprobs": 1}
    prompt = {"input_ids": [1, 93, 198, 204, 75]}
    (before,) = sampler.sample(prompt, params, adapter_name="own")
    for _ in range(5):
        model.forward_backward(inputs=[before])
        model.clip_grad_and_step()
    assert len(before.sequences[0].new_input_feature["input_ids"]) == 5 + len(
        before.sequences[0].tokens
    )
    base, trained = (
        sampler.sample([prompt], params, adapter_name=name)[0].sequences[0].logprobs
        for name in ("", "own")
    )
    assert base == before.sequences[0].logprobs and base != trained


def test_a_run_goes_on_from_its_checkpoint_in_another_session(connect, local, served, tmp_path):
    def step(model, seed, **name):
        out = bits(dict(model.forward_backward(inputs=drawn([9, 6], seed=seed), **name)))
        model.clip_grad_and_step(**name)
        return out

    connect()
    model = with_adapter(name="resumed", gradient_accumulation_steps=2)
    for seed in range(3):
        step(model, seed)
    path = model.save("at 3", save_optimizer=True, consumed_train_samples=6)
    rest = [step(model, seed) for seed in (3, 4, 5)]

    connect()
    model = with_adapter(name="another", gradient_accumulation_steps=2)
    progress = model.resume_from_checkpoint(path)
    assert progress == {
        "cur_step": 3, "consumed_train_samples": 6, "gradient_accumulation_steps": 2
    }  # fmt: skip
    assert [step(model, seed) for seed in (3, 4, 5)] == rest

    name = {"adapter_name": "resumed"}
    local.add_adapter_to_model("resumed", LoraConfig(r=4, target_modules="all-linear"), 2)
    local.set_optimizer("AdamW", lr=1e-2, **name)
    for seed in range(3):
        step(local, seed, **name)
    local.save("at-3", str(tmp_path), save_optimizer=True, **name)
    folder = served.folder(path)
    assert folder.name == "at_3"
    weights = "adapter_model.safetensors"
    assert (folder / weights).read_bytes() == (tmp_path / "at-3" / weights).read_bytes()


def test_threads_drive_adapters_of_their_own_with_the_bits_of_one_alone(connect):
    def train(client, name, losses):
        model = with_adapter(client, name)
        for step in range(3):
            losses.append(model.forward_backward(inputs=drawn([7, 9], seed=step))["loss"])
            model.clip_grad_and_step()

    together, first = {name: [] for name in ("a", "b", "c")}, connect()
    threads = [threading.Thread(target=train, args=(first, *each)) for each in together.items()]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    alone, second = {name: [] for name in together}, connect()
    for each in alone.items():
        train(second, *each)
    assert together == alone
    assert len({losses[2] for losses in alone.values()}) == 3


def test_all_weights_are_trained_by_one_run_at_a_time(connect, tiny_llama_dir, tmp_path):
    def steps(model, **name):
        found = {}
        model.set_optimizer("AdamW", lr=1e-3, **name)
        for step in range(4):
            rows = drawn([6, 9], seed=step)
            found[f"passed {step}"] = dict(model.forward_backward(inputs=rows, **name))
            found[f"norm {step}"] = model.clip_grad_and_step(**name)
        return bits(found | {"weights": dict(model.get_state_dict(**name))})

    server = reference()(tiny_llama_dir, tmp_path, full=True)
    client = connect(server.url)
    model = MultiLoraTransformersModel("tiny")
    with pytest.raises(InvalidError, match="here all weights are trained"):
        with_adapter(client)
    model.add_adapter_to_model("all", None, gradient_accumulation_steps=2)
    with pytest.raises(ConflictError, match="by another run"):
        MultiLoraTransformersModel("tiny").add_adapter_to_model("more", None)
    local = TransformersModel(tiny_llama_dir)
    local._group().set_gradient_accumulation_steps(2)
    assert steps(model) == steps(local)
    path = model.save("whole")
    assert (server.folder(path) / "model.safetensors").is_file()
    assert not client.list_checkpoints(client.list_training_runs()[0].training_run_id)[0].is_lora
    server.close()
