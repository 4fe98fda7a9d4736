"""The classes of `twinkle` on the compiled engine, against transformers and peft."""

import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from decay import decay_groups
from features import drawn

import twinkle
from twinkle import InvalidError, LoraConfig, NotFoundError
from twinkle.loss import Loss
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler, vLLMSampler

pytestmark = pytest.mark.usefixtures("engine_built")

BATCH = drawn([5, 17, 9])


@pytest.fixture
def fp32(tiny_llama_dir):
    return TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")


@pytest.fixture(scope="module")
def reference(tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)


def reference_logps(model, batch):
    out = torch.zeros(len(batch), max(len(f["input_ids"]) for f in batch))
    for row, f in enumerate(batch):
        logits = model(torch.as_tensor(f["input_ids"])[None]).logits[0].log_softmax(-1)
        labels = torch.as_tensor(f["labels"])
        rows = torch.nonzero(labels != -100)[:, 0]
        out[row, rows] = logits[rows, labels[rows]]
    return out


def add(model, name="default", **kwargs):
    fields = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **kwargs}
    model.add_adapter_to_model(name, LoraConfig(**fields))
    return model


def test_scores_equal_transformers(fp32, reference):
    with torch.no_grad():
        expected = reference_logps(reference, BATCH)
    torch.testing.assert_close(
        fp32.forward_only(inputs=BATCH)["logps"], expected, rtol=0, atol=1e-4
    )


def test_full_training_equals_transformers_with_adamw(fp32, tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    optimizer = torch.optim.AdamW(decay_groups(model), lr=1e-3, weight_decay=0.01)
    fp32.set_optimizer("AdamW", lr=1e-3)
    for step in range(4):
        batch = drawn([8, 12], seed=step)
        logps = reference_logps(model, batch)
        count = int((logps != 0).sum())
        (-logps.sum() / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        out = fp32.forward_backward(inputs=batch)
        assert out["loss"] == pytest.approx(-logps.sum().item(), abs=1e-3)
        assert fp32.clip_grad_and_step() == pytest.approx(float(norm), rel=1e-4)


def test_step_by_step_equals_forward_backward(tiny_llama_dir):
    weights, gradients = [], []
    for together in (True, False):
        model = add(TransformersModel(model_id=tiny_llama_dir))
        model.set_optimizer("AdamW", lr=1e-2)
        for step in range(3):
            batch = drawn([6, 11], seed=step)
            if together:
                model.forward_backward(inputs=batch)
                gradients.append(model.engine.inspect(tenant=model._group().tenant).result())
                model.clip_grad_and_step(0.5)
            else:
                model.forward(inputs=batch)
                model.calculate_loss()
                model.backward()
                gradients.append(model.engine.inspect(tenant=model._group().tenant).result())
                model.clip_grad_norm(0.5)
                model.step()
                model.zero_grad()
                model.lr_step()
        weights.append(model.get_state_dict())
    assert gradients[0] == gradients[3]  # before any clipping: bit for bit
    assert weights[0].keys() == weights[1].keys() and len(weights[0]) == 2 * 2 * 7
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-6, atol=1e-7)


class NegativeLogLikelihood(Loss):
    def __call__(self, inputs, outputs):
        mask = inputs["labels"] != -100
        return {"loss": -(outputs["logps"] * mask).sum(), "num_tokens": int(mask.sum())}


def test_a_loss_written_in_python_equals_the_engines_own(tiny_llama_dir):
    results = []
    for loss in ("CrossEntropyLoss", NegativeLogLikelihood):
        model = add(TransformersModel(model_id=tiny_llama_dir))
        model.set_loss(loss)
        out = model.forward_backward(inputs=BATCH)
        results.append((out["loss"], model.clip_grad_and_step(), model.get_state_dict()))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    assert results[0][1] == results[1][1]
    torch.testing.assert_close(results[0][2], results[1][2], rtol=0, atol=0)


class Bonus(Loss):
    """With the entropy as a bonus; d loss / d entropy is -0.1 a scored token."""

    require_entropy = True

    def __call__(self, inputs, outputs):
        scored = inputs["labels"] != -100
        assert (outputs["entropies"][~scored] == 0).all()
        value = -(outputs["logps"] + 0.1 * outputs["entropies"])[scored].sum()
        return {"loss": value, "num_tokens": int(scored.sum())}


def test_a_loss_written_in_python_learns_through_entropies(tiny_llama_dir, reference):
    model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.set_loss(Bonus())
    model.set_optimizer("SGD", lr=1.0, weight_decay=0.0)
    out = model.forward_backward(inputs=BATCH, micro_batch_size=1)
    model.forward(inputs=BATCH)
    assert model.calculate_loss() == pytest.approx(out["loss"], rel=1e-5)
    total, count = 0, 0
    reference.requires_grad_(True)
    for f in BATCH:
        labels = torch.as_tensor(f["labels"])
        logits = reference(torch.as_tensor(f["input_ids"])[None]).logits[0][labels != -100]
        logps = logits.log_softmax(-1)
        entropies = -(logps.exp() * logps).sum(-1)
        picked = logps.gather(1, labels[labels != -100][:, None])[:, 0]
        total, count = total - (picked + 0.1 * entropies).sum(), count + len(picked)
    assert out["loss"] == pytest.approx(total.item(), rel=1e-5)
    assert out["entropies"].shape == out["logps"].shape
    before = model.get_state_dict()
    model.clip_grad_and_step(max_grad_norm=0)
    name = "model.layers.0.self_attn.q_proj.weight"
    (grad,) = torch.autograd.grad(total / count, [reference.get_parameter(name)])
    moved = before[name] - model.get_state_dict()[name]
    torch.testing.assert_close(moved, grad, rtol=1e-3, atol=1e-6)


def test_a_loss_that_needs_entropies_is_set_before_the_forward(fp32):
    fp32.forward(inputs=BATCH)
    fp32.set_loss(Bonus())
    with pytest.raises(InvalidError, match="Bonus has require_entropy, but was set after the"):
        fp32.calculate_loss()


def test_a_loss_written_in_python_sees_the_dropout_that_its_gradient_goes_through(tiny_llama_dir):
    seen = []

    class Recorded(Loss):
        def __call__(self, inputs, outputs, **kwargs):
            seen.append(outputs["logps"].detach().clone())
            return (outputs["logps"] ** 2).sum()

    model = add(TransformersModel(model_id=tiny_llama_dir), lora_dropout=0.5)
    model.set_loss(Recorded())
    model.set_optimizer("AdamW", lr=0.05)
    for _ in range(2):
        out = model.forward_backward(inputs=BATCH)
        assert torch.equal(seen[-1], out["logps"])
        model.clip_grad_and_step()
    plain = model.forward_only(inputs=BATCH)["logps"]
    assert not torch.equal(plain, model.forward(inputs=BATCH)["logps"])


def test_disable_lora_scores_with_the_base_model(fp32):
    base = fp32.forward_only(inputs=BATCH)["logps"]
    add(fp32)
    fp32.set_optimizer("AdamW", lr=1e-2)
    fp32.forward_backward(inputs=BATCH)
    fp32.clip_grad_and_step()
    assert not torch.equal(fp32.forward_only(inputs=BATCH)["logps"], base)
    assert torch.equal(fp32.forward_only(inputs=BATCH, disable_lora=True)["logps"], base)


def test_temperature_divides_the_logits(fp32, reference):
    f = BATCH[1]
    with torch.no_grad():
        logits = reference(torch.as_tensor(f["input_ids"])[None]).logits[0] / 0.5
    labels = torch.as_tensor(f["labels"])
    expected = logits.log_softmax(-1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
    out = fp32.forward_only(inputs=[f], temperature=0.5)["logps"][0]
    torch.testing.assert_close(out, torch.where(labels != -100, expected, 0.0), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ([], "empty|no sequences|at least 1"),
        (drawn([513]), "513"),
        ([{"input_ids": [5, 100000], "labels": [5, -100]}], "100000"),
        ([{"input_ids": [5, 6], "labels": [100000, -100]}], "100000"),
        ([{"input_ids": [5, -1], "labels": [5, -100]}], "-1"),
        ([{"input_ids": [5.5, 6], "labels": [5, -100]}], "input_ids must be integers"),
        ([{"input_ids": [2**40], "labels": [5]}], "must fit 32 bits"),
    ],
)
def test_the_engines_errors_reach_the_user_and_change_nothing(tiny_llama_dir, batch, text):
    model = add(TransformersModel(model_id=tiny_llama_dir))
    tenant = model._group().tenant
    before = model.engine.inspect(tenant=tenant).result()
    with pytest.raises(InvalidError, match=text):
        model.forward_backward(inputs=batch)
    assert model.engine.inspect(tenant=tenant).result() == before


def test_wrong_models_and_adapters_are_named(tiny_llama_dir, tmp_path):
    with pytest.raises((NotFoundError, InvalidError), match="nowhere"):
        TransformersModel(model_id=str(tmp_path / "nowhere"))
    model = TransformersModel(model_id=tiny_llama_dir)
    with pytest.raises(InvalidError, match="no_such_proj"):
        add(model, target_modules=["no_such_proj"])
    add(model)
    with pytest.raises(twinkle.ConflictError, match="default"):
        add(model)


def test_saved_adapters_load_into_peft_and_back(fp32, tiny_llama_dir, tmp_path):
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    add(fp32)
    fp32.set_optimizer("AdamW", lr=1e-2)
    for _ in range(2):
        fp32.forward_backward(inputs=BATCH)
        fp32.clip_grad_and_step()
    directory = fp32.save("mine", output_dir=str(tmp_path))
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(base, directory)
    ours = fp32.forward_only(inputs=BATCH)["logps"]
    with torch.no_grad():
        torch.testing.assert_close(ours, reference_logps(theirs, BATCH), rtol=0, atol=1e-4)
    other = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    other.add_adapter_to_model("default", directory)
    assert torch.equal(other.forward_only(inputs=BATCH)["logps"], ours)


def test_saved_full_models_load_into_transformers(fp32, tmp_path):
    transformers = pytest.importorskip("transformers")
    fp32.set_optimizer("AdamW", lr=1e-3)
    fp32.forward_backward(inputs=BATCH)
    fp32.clip_grad_and_step()
    directory = fp32.save("full", output_dir=str(tmp_path))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        expected = reference_logps(theirs, BATCH)
    torch.testing.assert_close(
        fp32.forward_only(inputs=BATCH)["logps"], expected, rtol=0, atol=1e-4
    )
    transformers.AutoTokenizer.from_pretrained(directory)


def test_a_save_that_fails_halfway_leaves_the_old_checkpoint(fp32, tiny_llama_dir, tmp_path):
    add(fp32, r=1, target_modules=["q_proj"])
    path = Path(fp32.save("mine", output_dir=str(tmp_path)))
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    tokenizer = (Path(tiny_llama_dir) / "tokenizer.json").read_bytes()
    assert files["tokenizer.json"] == tokenizer
    limit = len(tokenizer) // 2  # the adapter's own files fit
    assert max(map(len, (files[name] for name in files if name.startswith("adapter")))) < limit
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        with pytest.raises(twinkle.TwinkleError, match=r"tokenizer\.json"):
            fp32.save("mine", output_dir=str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == files
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_a_sampler_sees_an_adapter_that_was_saved_again(tiny_llama_dir, tmp_path):
    model = add(TransformersModel(model_id=tiny_llama_dir, mixed_precision="no"))
    sampler = TorchSampler(tiny_llama_dir, engine_args={"dtype": "float32"})
    model.set_optimizer("AdamW", lr=1e-1)
    prompt, scores = {"input_ids": BATCH[1]["input_ids"]}, []
    for _ in range(2):
        path = model.save("mine", output_dir=str(tmp_path))
        (response,) = sampler.sample(
            prompt, {"max_tokens": 0, "prompt_logprobs": 1}, adapter_path=path
        )
        scores.append(response.prompt_logprobs[1:])
        model.forward_backward(inputs=BATCH)
        model.clip_grad_and_step()
    assert scores[0] != scores[1]


@pytest.mark.parametrize("full", [False, True])
def test_a_run_cut_in_the_middle_of_an_accumulation_goes_on_bit_for_bit(
    tiny_llama_dir, tmp_path, full
):
    def make():
        model = TransformersModel(model_id=tiny_llama_dir)
        if not full:
            add(model, lora_dropout=0.1)
        model.set_optimizer("AdamW", lr=1e-2)
        model.set_lr_scheduler("LinearLR")
        return model

    def train(model, steps):
        for step in steps:
            model.forward_backward(inputs=drawn([7, 9], seed=step))
            model.clip_grad_and_step(gradient_accumulation_steps=2)
        return model

    whole = train(make(), range(6)).get_state_dict()
    first = train(make(), range(3))
    path = first.save("cut", output_dir=str(tmp_path), save_optimizer=True)
    del first
    second = make()
    second.resume_from_checkpoint(path)
    train(second, range(3, 6))
    for name, value in second.get_state_dict().items():
        assert torch.equal(value, whole[name]), name


@pytest.mark.parametrize("optimizer", [False, True])
def test_load_takes_saved_weights_and_with_the_optimizer_goes_on_bit_for_bit(
    tiny_llama_dir, tmp_path, optimizer
):
    model = add(TransformersModel(model_id=tiny_llama_dir))
    model.set_optimizer("AdamW", lr=1e-2)
    model.set_lr_scheduler("LinearLR", total_iters=4)

    def train(seed):
        model.forward_backward(inputs=drawn([7, 9], seed=seed))
        model.clip_grad_and_step()
        return model.get_state_dict()

    def same(left, right):
        return all(torch.equal(value, right[name]) for name, value in left.items())

    train(0)
    saved = train(1)
    path = model.save("here", output_dir=str(tmp_path), save_optimizer=True)
    after = train(2)
    model.forward_backward(inputs=drawn([5], seed=3))  # forgotten
    if optimizer:
        model.load("here", output_dir=str(tmp_path), load_optimizer=True)
    else:
        model.load(path)
    assert not same(saved, after) and same(saved, model.get_state_dict())
    assert same(train(2), after) is optimizer


def test_a_template_that_was_set_encodes_what_is_scored(fp32):
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    lengths = []
    for system in (None, "You are a lighthouse keeper who answers in one word."):
        fp32.set_template("Template", default_system=system)
        lengths.append(fp32.forward_only(inputs=[row])["logps"].shape[1])
    assert lengths[1] > lengths[0] + 5


def test_every_parameter_of_sampling_reaches_the_engine(tiny_llama_dir):
    sampler = TorchSampler(tiny_llama_dir, engine_args={"dtype": "float32"})
    prompt = {"input_ids": BATCH[1]["input_ids"]}

    def tokens(**params):
        given = {"max_tokens": 12, "seed": 1, **params}
        return sampler.sample(prompt, given)[0].sequences[0].tokens

    greedy, free = tokens(temperature=0), tokens()
    assert free != greedy
    for only_one in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-4}):
        assert tokens(**only_one) == greedy, only_one
    assert tokens(top_k=-1, top_p=1.0, min_p=0.0) == free
    assert tokens(temperature=0, stop=[greedy[2]]) == greedy[: greedy.index(greedy[2]) + 1]
    new = tokens(temperature=0, repetition_penalty=1e6, max_tokens=24)
    assert len(set(new)) == 24 and not set(new) & set(np.asarray(prompt["input_ids"]).tolist())


def test_greedy_text_equals_transformers(tiny_llama_dir, reference):
    sampler = TorchSampler(tiny_llama_dir, engine_args={"dtype": "float32"})
    prompts = [f["input_ids"] for f in BATCH]
    responses = sampler.sample(
        [{"input_ids": p} for p in prompts], {"max_tokens": 32, "temperature": 0, "logprobs": 1}
    )
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.as_tensor(prompt)[None]
        expected = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False
        )[0, len(prompt) :].tolist()
        assert response.sequences[0].tokens == expected


def test_sampled_logprobs_are_those_of_the_trainer(tiny_llama_dir):
    model = add(TransformersModel(model_id=tiny_llama_dir, mixed_precision="no"))
    model.set_optimizer("AdamW", lr=1e-2)
    model.forward_backward(inputs=BATCH)
    model.clip_grad_and_step()
    sampler = vLLMSampler(model=model)
    row = {"messages": [{"role": "user", "content": "Who are you?"}]}
    params = {"max_tokens": 12, "logprobs": 1, "num_samples": 2, "seed": 3}
    (response,) = sampler.sample(row, params)
    assert response.sequences[0].tokens != response.sequences[1].tokens
    for sequence in response.sequences:
        feature = sequence.new_input_feature
        assert feature["messages"][-1]["role"] == "assistant"
        scored = model.forward_only(inputs=feature)["logps"][0]
        given = torch.tensor([pair[0][1] for pair in sequence.logprobs])
        start = len(response.prompt_token_ids) - 1
        torch.testing.assert_close(scored[start : start + len(given)], given, rtol=0, atol=1e-4)
    (again,) = sampler.sample(row, params)
    assert [s.tokens for s in again.sequences] == [s.tokens for s in response.sequences]


def test_stop_strings_end_a_reply(tiny_llama_dir):
    sampler = TorchSampler(tiny_llama_dir)
    row = {"messages": [{"role": "user", "content": "Who are you?"}]}
    (free,) = sampler.sample(row, {"max_tokens": 30, "seed": 1})
    text = free.sequences[0].decoded
    assert len(text) > 8
    (stopped,) = sampler.sample(row, {"max_tokens": 30, "seed": 1, "stop": [text[4:6]]})
    assert stopped.sequences[0].stop_reason == "stop"
    assert len(stopped.sequences[0].tokens) < len(free.sequences[0].tokens)


def test_two_adapters_train_side_by_side_as_each_alone(tiny_llama_dir):
    def one(model, name, rank, loss_seed):
        add(model, name, r=rank)
        model.set_optimizer("SGD", lr=0.1, adapter_name=name)
        model.forward_backward(inputs=drawn([9, 6], seed=loss_seed), adapter_name=name)
        model.clip_grad_and_step(adapter_name=name)
        return model.get_state_dict(adapter_name=name)

    alone = [
        one(TransformersModel(model_id=tiny_llama_dir), name, rank, seed)
        for name, rank, seed in (("a", 4, 1), ("b", 16, 2))
    ]
    shared = TransformersModel(model_id=tiny_llama_dir)
    together = [one(shared, "a", 4, 1), one(shared, "b", 16, 2)]
    for left, right in zip(alone, together, strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_future_can_be_asked_and_waited_for(fp32):
    tenant = fp32.frozen_tenant()
    future = fp32.engine.forward(tenant=tenant, sequences=drawn([400] * 100))
    with pytest.raises(TimeoutError, match="has not ended in time"):
        future.result(timeout=0.0)
    first, second = future.result(), future.result()
    assert future.done() and len(first["logps"]) == len(second["logps"]) == 100


def test_a_sequence_has_no_other_fields_than_the_engines(fp32):
    tenant, sequence = fp32.frozen_tenant(), drawn([3])[0]
    text = (
        r"^engine: sequence 1: 'weigths' is not a field, it has input_ids, labels, "
        "weights, extras, embedding_grad, logits_grad, num_targets and "
        "routed_experts$"
    )
    with pytest.raises(InvalidError, match=text):
        fp32.engine.forward(tenant=tenant, sequences=[sequence, {**sequence, "weigths": [1, 1, 1]}])


def test_ctrl_c_ends_the_waiting_and_leaves_the_engine_usable(fp32):
    tenant = fp32.frozen_tenant()
    future = fp32.engine.forward(tenant=tenant, sequences=drawn([500] * 400))
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            future.result()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert fp32.forward_only(inputs=BATCH)["logps"].shape == (3, 17)
