"""twinkle.engine: tenants and futures on the compiled engine."""

import threading
from pathlib import Path

import numpy as np
import pytest
from features import drawn

import twinkle.engine
from twinkle import (
    ConflictError,
    InvalidError,
    LoraConfig,
    NotFoundError,
    TwinkleError,
)
from twinkle.data_format import SamplingParams
from twinkle.engine import Engine
from twinkle.model import MultiLoraTransformersModel

pytestmark = pytest.mark.usefixtures("engine_built")

LORA = LoraConfig(r=4, target_modules="all-linear")
BATCH = drawn([5, 17, 9])


@pytest.fixture(scope="module")
def engine(tiny_llama_dir):
    return Engine(tiny_llama_dir)


@pytest.fixture
def tenant(engine, request):
    tenant = engine.tenant(request.node.name, LORA, seed=3)
    yield tenant
    tenant.delete().result()


def test_training_lowers_the_loss_and_every_result_is_a_future_of_what_it_says(tenant):
    losses = []
    for _ in range(4):
        future = tenant.forward_backward(BATCH)
        result = future.result(timeout=60)
        assert future.done() and future.result() == result
        assert result["loss"] == result.loss
        assert result.num_tokens == sum((f["labels"] != -100).sum() for f in BATCH)
        assert [row.shape for row in result.logps] == [(5,), (17,), (9,)]
        assert all(row.dtype == np.float32 for row in result.logps)
        assert result.loss == pytest.approx(-sum(row.sum() for row in result.logps), rel=1e-5)
        losses.append(result.loss)
        step = tenant.step("AdamW", max_grad_norm=1.0, lr=2e-3).result()
        assert step.step == len(losses) and step.grad_norm > 0
    assert losses[-1] < losses[0]


def test_a_result_is_the_same_object_of_the_engine_however_often_it_is_asked_for(tenant):
    future = tenant.forward(BATCH)
    first, second = future.result().logps, future.result().logps
    del future
    assert first[1] is second[1]
    assert first[1].flags.writeable and not first[1].flags.owndata  # no copy was made
    np.testing.assert_array_equal(first[1], tenant.logprobs(BATCH).result()[1])


def test_forward_scores_and_touches_nothing(tenant):
    before = tenant.inspect().result()
    result = tenant.forward(BATCH, entropy=True).result()
    assert result.loss is None and len(result.entropies) == 3
    assert (result.logps[0][BATCH[0]["labels"] == -100] == 0).all()
    assert tenant.inspect().result() == before
    with pytest.raises(AttributeError, match="the result has no 'logits'"):
        _ = result.logits


def test_positions_that_are_masked_are_dropped_and_rows_keep_their_length(tenant):
    ids, labels = np.arange(3, 9), np.arange(4, 10)
    mask = np.array([1, 1, 1, 1, 0, 0])
    masked = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    plain = {"input_ids": ids[:4], "labels": labels[:4]}
    (got,), (want,) = (
        tenant.forward_backward([f], "LinearLoss", grad=[g]).result().logps
        for f, g in ((masked, np.ones(6)), (plain, np.ones(4)))
    )
    np.testing.assert_array_equal(got[:4], want)
    assert (got[4:] == 0).all() and len(got) == 6


def test_extras_are_per_token_lists_or_options_of_the_loss(engine, tenant):
    def gradient(loss, **extras):
        tenant.forward_backward(BATCH, loss, **extras).result()
        out = tenant.inspect().result().gradients
        tenant.zero_grad().result()
        return out

    each = [np.full(len(f["input_ids"]), -1.0) for f in BATCH]
    want = gradient("CrossEntropyLoss")
    assert gradient("LinearLoss", grad=each, num_tokens=3) == want
    assert gradient("LinearLoss", grad=[-1.0] * 3) == want
    assert gradient("CrossEntropyLoss", reduction="mean") != want


def test_a_sample_gives_responses_and_its_logprobs_are_those_of_forward(tiny_llama_dir):
    engine = Engine(tiny_llama_dir, mixed_precision="no", token_budget=64)
    base = engine.tenant("base")
    params = SamplingParams(max_tokens=5, seed=7, logprobs=1, num_samples=2)
    prompts = [{"input_ids": [5, 6, 7]}, {"messages": [{"role": "user", "content": "Hello!"}]}]
    responses = base.sample(prompts, params).result()
    assert [len(r.sequences) for r in responses] == [2, 2]
    assert responses[0].prompt_token_ids == [5, 6, 7]
    assert isinstance(responses[1].sequences[0].decoded, str)
    for sequence in responses[0].sequences:
        ids = np.array([5, 6, 7, *sequence.tokens])
        (row,) = base.logprobs([{"input_ids": ids, "labels": np.append(ids[1:], -100)}]).result()
        assert [pair[0][1] for pair in sequence.logprobs] == list(row[2:-1])
    again = base.sample(prompts[:1], {"max_tokens": 5, "seed": 7, "num_samples": 2}).result()
    assert [s.tokens for s in again[0].sequences] == [s.tokens for s in responses[0].sequences]
    one, two = (base.sample(prompts[:1], {"max_tokens": 12}).result() for _ in range(2))
    assert one[0].sequences[0].tokens != two[0].sequences[0].tokens  # no seed: its own each time


def test_saved_and_loaded_a_tenant_goes_on_bit_for_bit(engine, tenant, tmp_path):
    tenant.forward_backward(BATCH).result()
    tenant.step(lr=0.01).result()
    tenant.forward_backward(BATCH).result()
    directory = tenant.save(tmp_path / "checkpoint", optimizer=True, extra="later").result()
    assert directory == str(tmp_path / "checkpoint")
    other = engine.tenant("other", directory)
    assert other.load(directory, optimizer=True).result() == "later"
    for each in (tenant, other):
        each.clip_grad_norm(0.5).result()
        each.step(lr=0.01).result()
    assert other.inspect().result() == tenant.inspect().result()
    other.delete().result()
    tensors = tenant.inspect(tensors=True).result().tensors
    assert any(name.endswith("lora_A.weight") for name in tensors)


def test_a_cancelled_operation_never_was(engine, tenant):
    want = tenant.inspect().result()
    slow = engine.tenant("slow", LORA)
    waiting = [slow.forward_backward(drawn([400] * 8, seed=i)) for i in range(3)]
    future = tenant.forward_backward(BATCH)
    if future.cancel():
        with pytest.raises(ConflictError, match="engine: cancelled"):
            future.result()
        assert tenant.inspect().result() == want
    assert future.done() or future.result()
    for each in waiting:
        each.result()
    assert not waiting[0].cancel()  # it has ended
    slow.delete().result()


def test_one_tenant_at_a_time_may_train_all_weights(tiny_llama_dir):
    engine = Engine(tiny_llama_dir)
    full = engine.tenant("full", full_parameters=True)
    first = full.forward_backward(BATCH).result().loss
    full.step(lr=1e-2).result()
    assert full.forward_backward(BATCH).result().loss < first
    with pytest.raises(ConflictError, match="trains all weights"):
        engine.tenant("adapter", LORA)
    full.delete().result()
    frozen = engine.tenant("frozen")
    assert frozen.inspect().result().num_parameters == 0
    with pytest.raises(InvalidError, match="is the frozen base model; add an adapter"):
        frozen.forward_backward(BATCH).result()


def test_neighbours_change_no_bit(tiny_llama_dir):
    def train(engine, name, crowd):
        me = engine.tenant(name, LORA, seed=1)
        others = [engine.tenant(f"other {i}", {"r": 2 + i}, seed=i) for i in range(crowd)]
        futures = []
        for step in range(3):
            for i, other in enumerate(others):
                futures.append(other.forward_backward(drawn([7 + i, 30], seed=step)))
                futures.append(other.step("SGD", lr=0.1))
            futures.append(me.forward_backward(drawn([12, 5, 20], seed=step)))
            futures.append(me.step(lr=0.01, max_grad_norm=0.5))
        for future in futures:
            future.result()
        return me.inspect().result()

    alone = train(Engine(tiny_llama_dir), "me", 0)
    assert train(Engine(tiny_llama_dir, token_budget=25), "me", 4) == alone
    free = train(Engine(tiny_llama_dir, deterministic=False), "me", 0)
    assert free.step == alone.step


def test_two_threads_that_drive_two_adapters_get_the_bits_of_each_alone(tiny_llama_dir):
    def drive(model, name, seed, out):
        model.set_optimizer("AdamW", lr=1e-2, adapter_name=name)
        losses = []
        for step in range(5):
            batch = drawn([6 + seed, 21], seed=10 * seed + step)
            losses.append(model.forward_backward(inputs=batch, adapter_name=name)["loss"])
            losses.append(model.clip_grad_and_step(0.5, adapter_name=name))
        state = model.get_state_dict(adapter_name=name)
        out[name] = (losses, {key: value.numpy().tobytes() for key, value in state.items()})

    def run(names):
        model, out = MultiLoraTransformersModel(model_id=tiny_llama_dir), {}
        for name in names:
            model.add_adapter_to_model(name, LoraConfig(r=2 + ord(name[0]) % 3, lora_dropout=0.1))
        threads = [
            threading.Thread(target=drive, args=(model, name, ord(name[0]) % 7, out))
            for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return out

    together = run(["a", "b"])
    assert together["a"] == run(["a"])["a"]
    assert together["b"] == run(["b"])["b"]


def test_a_multi_lora_model_holds_to_its_limits(tiny_llama_dir, tmp_path):
    model = MultiLoraTransformersModel(
        model_id=tiny_llama_dir, lora_config=LoraConfig(r=8), max_loras=1, max_r=8, max_length=30
    )
    with pytest.raises(InvalidError, match="the rank is 9, max_r is 8"):
        model.add_adapter_to_model("a", {"r": 9})
    model.add_adapter_to_model("a", LORA)
    with pytest.raises(InvalidError, match="max_loras is 1: remove one"):
        model.add_adapter_to_model("b", LORA)
    with pytest.raises(InvalidError, match="31 tokens together, max_length is 30: pass fewer"):
        model.forward_backward(inputs=BATCH, adapter_name="a")
    assert model.forward_backward(inputs=BATCH[1:], adapter_name="a")["loss"] > 0
    with pytest.raises(InvalidError, match="needs adapter_name"):
        model.forward_backward(inputs=BATCH)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"model_id": 5}, "engine: model_id is 5, it must be a path"),
        ({"model_id": ""}, "engine: model_id is '', it must be a path"),
        ({"mixed_precision": "fp8"}, "engine: mixed_precision is 'fp8', it must be 'bf16' or 'no'"),
        ({"deterministic": 1}, "engine: deterministic is 1, it must be True or False"),
        ({"token_budget": 0}, "engine: token_budget is 0, it must be an integer of at least 1"),
        ({"token_budget": "x"}, "engine: token_budget is 'x', it must be an integer"),
        ({"kv_tokens": 1.5}, "engine: kv_tokens is 1.5, it must be an integer"),
        ({"colour": 1}, "engine: Engine: unknown argument 'colour'"),
    ],
)
def test_wrong_arguments_of_an_engine_are_named(tiny_llama_dir, arguments, text):
    with pytest.raises(InvalidError, match=text):
        Engine(**{"model_id": tiny_llama_dir, **arguments})


def test_a_model_that_does_not_exist_is_named():
    with pytest.raises((NotFoundError, TwinkleError), match="/no/such/model"):
        Engine("/no/such/model")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": 5}, "engine: name is 5, it must be a text that is not empty"),
        ({"name": ""}, "engine: name is '', it must be a text"),
        ({"lora_config": 5}, "lora: the config is a int, it must be a LoraConfig"),
        ({"lora_config": {"r": 0}}, "lora: rank is 0, it must be at least 1"),
        ({"lora_config": {"target_modules": ["no"]}}, "target module 'no' matches nothing"),
        ({"seed": -1}, "engine: seed is -1, it must be an integer of at least 0"),
        ({"weight": 0}, "engine: weight is 0, it must be a number of at least 0.001"),
        ({"weight": 1001}, "engine: weight is 1001.0, it must be at most 1000"),
        ({"weight": float("nan")}, "engine: weight is nan, it must be a number"),
        ({"priority": "high"}, "engine: priority is 'high', it must be an integer"),
        ({"full_parameters": 1}, "engine: full_parameters is 1, it must be True or False"),
        ({"lora_config": LORA, "full_parameters": True}, "lora_config and full_parameters=True"),
    ],
)
def test_wrong_arguments_of_a_tenant_are_named(engine, arguments, text):
    with pytest.raises(InvalidError, match=text):
        engine.tenant(**{"name": "wrong", **arguments})


def test_a_name_is_one_tenants(engine, tenant):
    with pytest.raises(ConflictError, match="exists"):
        engine.tenant(tenant.name)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: t.forward(5), "engine: inputs is 5, it must be a list of InputFeatures"),
        (lambda t: t.forward([{}]), r"inputs\[0\] must be an InputFeature with input_ids"),
        (lambda t: t.forward([{"input_ids": [[1]]}]), r"input_ids of inputs\[0\] has shape"),
        (lambda t: t.forward([]), "the batch is empty"),
        (lambda t: t.forward([{"input_ids": [9999]}]), "token 9999 .*outside the vocabulary"),
        (lambda t: t.forward([{"input_ids": [1.5]}]), "input_ids must be integers"),
        (
            lambda t: t.forward(BATCH, temperature=0),
            "engine: temperature is 0, it must be a number abo",
        ),
        (lambda t: t.forward(BATCH, train=2), "engine: train is 2, it must be True or False"),
        (lambda t: t.forward(BATCH, entropy=2), "engine: entropy is 2, it must be True or False"),
        (lambda t: t.forward(BATCH, disable_lora=2), "engine: disable_lora is 2, it must be"),
        (lambda t: t.forward_backward(BATCH, loss=5), "engine: loss is 5, it must be a text"),
        (lambda t: t.forward_backward(BATCH, "No").result(), "[Uu]nknown loss 'No'|no loss"),
        (
            lambda t: t.forward_backward(BATCH, "LinearLoss", grad=[1.0]),
            "grad has 1 entries for 3 inputs",
        ),
        (
            lambda t: t.forward_backward(BATCH, "LinearLoss", grad=[[1.0]] * 3),
            r"grad of inputs\[0\] has 1 entries, input_ids has 5",
        ),
        (
            lambda t: t.forward_backward(BATCH, "LinearLoss", grad=["a"] * 3),
            r"grad of inputs\[0\] must be a number or a list of numbers",
        ),
        (lambda t: t.forward_backward(BATCH, mean=object()), "engine: extras: mean is not JSON"),
        (lambda t: t.step(5), "engine: optimizer is 5, it must be a text"),
        (lambda t: t.step("Adams"), "Adams"),
        (lambda t: t.step(warmth=3), "warmth"),
        (lambda t: t.step(max_grad_norm=-1), "engine: max_grad_norm is -1, it must be a number of"),
        (lambda t: t.step(norm_type="a"), "engine: norm_type is 'a', it must be a number"),
        (lambda t: t.clip_grad_norm("a"), "engine: max_grad_norm is 'a', it must be a number"),
        (lambda t: t.sample(5), "engine: prompts is 5, it must be a list of InputFeatures"),
        (lambda t: t.sample(BATCH, 5), "engine: sampling_params is 5, it must be SamplingParams"),
        (lambda t: t.sample(BATCH, [None] * 2), "sampling_params has 2 entries for 3 prompts"),
        (lambda t: t.sample(BATCH, {"max_tokens": 600}), "max_tokens of prompt 0 is 600, the mod"),
        (lambda t: t.save(5), "engine: directory is 5, it must be a path"),
        (lambda t: t.save("x", optimizer=1), "engine: optimizer is 1, it must be True or False"),
        (lambda t: t.save("x", extra=1), "engine: extra is 1, it must be a text"),
        (lambda t: t.load(""), "engine: directory is '', it must be a path"),
        (lambda t: t.inspect(3), "engine: tensors is 3, it must be True or False"),
        (lambda t: t.forward(BATCH).result("soon"), "engine: timeout is 'soon', it must be a num"),
    ],
)
def test_wrong_arguments_of_operations_are_named_and_change_nothing(tenant, call, text):
    before = tenant.inspect().result()
    with pytest.raises(InvalidError, match=text):
        call(tenant)
    assert tenant.inspect().result() == before


def test_operations_that_cannot_succeed_say_so_in_their_future(tenant, tmp_path):
    with pytest.raises(ConflictError, match="has no accumulated gradients"):
        tenant.step().result()
    with pytest.raises(NotFoundError):
        tenant.load(tmp_path / "nowhere").result()


def test_the_example_of_the_document_runs(tiny_llama_dir, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace("smollm2", tiny_llama_dir), "docs/engine.md", "exec"), {})
    assert (tmp_path / "alice" / "adapter_model.safetensors").is_file()


def test_the_module_exports_what_it_documents():
    assert set(twinkle.engine.__all__) == {"Engine", "Future", "Result", "Tenant"}
