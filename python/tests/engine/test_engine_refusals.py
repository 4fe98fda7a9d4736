"""Wrong arguments of engines, tenants and operations."""

import json
from pathlib import Path

import numpy as np
import pytest
from engine_batches import BATCH, LORA

from twinkle import ConflictError, InvalidError, NotFoundError, TwinkleError
from twinkle.core import core
from twinkle.engine import Engine
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler

pytestmark = pytest.mark.usefixtures("engine_built")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"model_id": 5}, "engine: model_id is 5, it must be a path"),
        ({"model_id": ""}, "engine: model_id is '', it must be a path"),
        ({"mixed_precision": "fp8"}, "engine: mixed_precision is 'fp8', it must be 'bf16' or 'no'"),
        ({"deterministic": 1}, "engine: deterministic is 1, it must be True or False"),
        ({"device": 1}, "engine: device is 1, it must be a text that is not empty"),
        ({"device": "gpu"}, "device is 'gpu'"),
        (
            {"device": "tpu"},
            "engine: device is 'tpu', it must be 'cpu', 'cuda' or 'cuda:' and a number",
        ),
        ({"device": "cuda:99"}, "device is 'cuda:99'"),
        ({"decode_graphs": 1}, "engine: decode_graphs is 1, it must be True or False"),
        ({"train_graphs": 1}, "engine: train_graphs is 1, it must be True or False"),
        ({"value_head": 1}, "engine: value_head is 1, it must be True or False"),
        ({"token_budget": 0}, "engine: token_budget is 0, it must be an integer of at least 1"),
        ({"token_budget": "x"}, "engine: token_budget is 'x', it must be an integer"),
        ({"kv_tokens": 1.5}, "engine: kv_tokens is 1.5, it must be an integer"),
        ({"kv_tokens": 2**36}, "kv_tokens is 68719476736, it must be .*, at most 2147483647"),
        ({"token_budget": 2**31}, "token_budget is 2147483648, it must be .*, at most 2147483647"),
        ({"max_sequences": 2**31}, "max_sequences is 2147483648, .*, at most 2147483647"),
        ({"prefill_tokens": 0}, "engine: prefill_tokens is 0, it must be an integer of at least 1"),
        ({"prefill_tokens": 2**31}, "prefill_tokens is 2147483648, .*, at most 2147483647"),
        ({"max_queued": 0}, "engine: max_queued is 0, it must be an integer of at least 1"),
        ({"max_queued_total": -1}, "engine: max_queued_total is -1, it must be an integer of at"),
        ({"max_sequences": True}, "engine: max_sequences is True, it must be an integer of at"),
        (
            {"sampling_share": 1},
            "engine: sampling_share is 1, it must be a number above 0, below 1",
        ),
        ({"sampling_share": 0}, "engine: sampling_share is 0, it must be a number above 0"),
        ({"activation_bytes": -1}, "engine: activation_bytes is -1, it must be an integer of at"),
        ({"resident_bytes": "1 GiB"}, "engine: resident_bytes is '1 GiB', it must be an integer"),
        ({"resident_bytes": 5}, "engine: resident_bytes is 5 but park_directory is empty; name"),
        ({"park_directory": 5}, "engine: park_directory is 5, it must be a text"),
        (
            {"resident_bytes": 5, "park_directory": "/proc/none"},
            "engine: park_directory /proc/none cannot be written to; name a folder that can",
        ),
        ({"colour": 1}, "engine: 'colour' is no option; there are model, mixed_precision, device"),
        ({"token_budge": 1}, "engine: 'token_budge' is no option; did you mean 'token_budget'"),
        (
            {"gather_ms": float("nan")},
            "engine: gather_ms is nan, it must be a number of at least 0",
        ),
        ({"memory_share": 0}, "engine: memory_share is 0, it must be a number of at least 0.001"),
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
        ({"lora_config": {"r": 0}}, "lora: r is 0, it must be an integer of at least 1"),
        ({"lora_config": {"target_modules": ["no"]}}, "target module 'no' matches nothing"),
        ({"seed": -1}, "engine: seed is -1, it must be an integer of at least 0"),
        ({"weight": 0}, "engine: weight is 0, it must be a number of at least 0.001"),
        ({"weight": 1001}, "engine: weight is 1001, it must be .* 0.001, at most 1000"),
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
        (
            lambda t: t.forward(5),
            "engine: inputs is 5, it must be a dict, a list of dicts, or sample",
        ),
        (lambda t: t.forward([{}]), r"inputs\[0\] must be an InputFeature with input_ids"),
        (
            lambda t: t.forward_backward([{"note": "a", "\ud800": 1, "output": "b"}]),
            r"or a Trajectory with messages; the row has note, \?, output: make messages of it, ",
        ),
        (
            lambda t: t.forward_backward([{"prompt": "a", "chosen": "b", "rejected": "c"}]),
            r"the row has prompt, chosen, rejected: pairs are for preference optimization, see ",
        ),
        (
            lambda t: t.sample([{"input_ids": np.ma.array([1, 2], mask=[0, 1])}]),
            r"input_ids of prompts\[0\] is a masked array, it must be one without a mask",
        ),
        (lambda t: t.forward([{"input_ids": [[1]]}]), r"input_ids of inputs\[0\] has shape"),
        (lambda t: t.forward([]), "the batch is empty"),
        (lambda t: t.forward([{"input_ids": [9999]}]), "token 9999 .*outside the vocabulary"),
        (lambda t: t.forward([{"input_ids": [1.5]}]), "input_ids must be integers"),
        (
            lambda t: t.forward(BATCH, temperature=0),
            "engine: temperature is 0, it must be above 0",
        ),
        (lambda t: t.forward(BATCH, train=2), "engine: train is 2, it must be True or False"),
        (lambda t: t.forward(BATCH, entropy=2), "engine: entropy is 2, it must be True or False"),
        (lambda t: t.forward(BATCH, disable_lora=2), "engine: disable_lora is 2, it must be"),
        (lambda t: t.forward_backward(BATCH, loss=5), "engine: loss is 5, it must be a text"),
        (lambda t: t.forward_backward(BATCH, "No").result(), "[Uu]nknown loss 'No'|no loss"),
        (
            lambda t: t.forward_backward(BATCH, advantages=[1.0] * len(BATCH)).result(),
            "CrossEntropyLoss does not read 'advantages', it reads none",
        ),
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
        (
            lambda t: t.forward_backward(BATCH, mean=object()),
            "engine: extras: mean is <object .*, it must be a finite number, a text",
        ),
        (
            lambda t: t.forward_backward(BATCH, num_tokens=float("inf")),
            "engine: extras: num_tokens is inf, it must be a finite number",
        ),
        (lambda t: t.step(5), "engine: optimizer is 5, it must be a text"),
        (lambda t: t.step("Adams"), "Adams"),
        (lambda t: t.step(warmth=3), "warmth"),
        (
            lambda t: t.step(lr=float("nan")),
            "engine: options: lr is nan, it must be a finite number",
        ),
        (
            lambda t: t.step(lr=1e39),
            r"optim: lr of AdamW is 1e\+39, it must be finite in float32, at most 3.40282e\+38",
        ),
        (
            lambda t: t.step("SGD", lr=1e30, weight_decay=1e9),
            r"optim: lr \* weight_decay of SGD is 1e\+39, it must be finite in float32",
        ),
        (
            lambda t: t.step(betas=(0.9, float("nan"))),
            r"engine: options: betas is \(0.9, nan\), it must be a finite number",
        ),
        (lambda t: t.step(max_grad_norm=-1), "engine: max_grad_norm is -1, it must be a number of"),
        (
            lambda t: t.step(max_grad_norm=float("nan")),
            "engine: max_grad_norm is nan, it must be a number of at least 0",
        ),
        (
            lambda t: t.clip_grad_norm(float("-inf")),
            "engine: max_grad_norm is -inf, it must be a number of at least 0",
        ),
        (lambda t: t.step(divide="no"), "engine: divide is 'no', it must be True or False"),
        (lambda t: t.step(norm_type="a"), "engine: norm_type is 'a', it must be a number"),
        (lambda t: t.step(norm_type=0), "engine: norm_type is 0, it must be a number above 0"),
        (lambda t: t.clip_grad_norm(norm_type=0), "engine: norm_type is 0, it must be a number a"),
        (lambda t: t.clip_grad_norm("a"), "engine: max_grad_norm is 'a', it must be a number"),
        (lambda t: t.sample(5), "engine: prompts is 5, it must be a dict, a list of dicts, or sa"),
        (lambda t: t.sample(BATCH, 5), "engine: sampling_params is 5, it must be SamplingParams"),
        (lambda t: t.sample(BATCH, [None] * 2), "sampling_params has 2 entries for 3 prompts"),
        (
            lambda t: t.sample(BATCH, {"max_tokens": 600}),
            "prompt 0 has .* and max_tokens is 600, .* fit the mod",
        ),
        (lambda t: t.sample([{"input_ids": "x"}]), r"input_ids of prompts\[0\] is 'x', it must be"),
        (lambda t: t.sample(BATCH, version=-1), "engine: version is -1, it must be an integer of"),
        (lambda t: t.sample(BATCH, version="1"), "engine: version is '1', it must be an integer"),
        (lambda t: t.sample_stream(BATCH), "engine: prompt is .*, it must be an InputFeature or a"),
        (lambda t: t.sample_stream(BATCH[0], 5), "engine: sampling_params is 5, it must be"),
        (
            lambda t: t.sample_stream(BATCH[0], [None]),
            r"sampling_params is \[None\], it must",
        ),
        (lambda t: t.sample_stream(BATCH[0], version=1.5), "engine: version is 1.5, it must be"),
        (lambda t: t.release(0), "engine: release: version is 0, it must be at least 1"),
        (lambda t: t.release("1"), "engine: version is '1', which is of a wrong type or too large"),
        (lambda t: t.save(5), "engine: directory is 5, it must be a path"),
        (lambda t: t.save("x", optimizer=1), "engine: optimizer is 1, it must be True or False"),
        (lambda t: t.save("x", extra=1), "engine: extra is 1, it must be a text"),
        (lambda t: t.load("x", exact=1), "engine: exact is 1, it must be True or False"),
        (lambda t: t.load("x", exact=True), "engine: load: exact is true and optimizer false"),
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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"token_budget": "many"}, "token_budget is 'many', it must be an integer of at least 1"),
        ({"kv_tokens": 2**80}, "kv_tokens is 1208925819614629174706176, it must be an integer"),
        ({"token_budget": True}, "token_budget is True, it must be an integer of at least 1"),
        ({"colour": 1}, "'colour' is no option; there are model, mixed_precision, device, "),
        ({"device": 1}, "device is 1, it must be a text"),
    ],
)
def test_the_compiled_engine_names_an_option_that_it_cannot_take(tiny_llama_dir, options, text):
    with pytest.raises(InvalidError, match=f"^engine: {text}"):
        core().Engine(tiny_llama_dir, **options)


@pytest.mark.parametrize(
    ("sequence", "text"),
    [
        ({"input_ids": [1.5]}, "input_ids must be integers"),
        ({"input_ids": [[1]]}, "input_ids must be one-dimensional: a list of numbers or a numpy"),
        ({"input_ids": [2**40]}, r"input_ids\[0\] is 1099511627776, it must fit 32 bits"),
        (
            {"input_ids": [1], "labels": np.array([2**64 - 100], np.uint64)},
            r"labels\[0\] is 18446744073709551516, it must fit 32 bits",
        ),
        ({"input_ids": [2**64 - 5]}, r"input_ids\[0\] is 18446744073709551611, it must fit 32"),
        ({"input_ids": [1], "labels": ["a"]}, "labels must be integers"),
        ({"input_ids": [1], "weights": ["a"]}, "weights must be numbers"),
        ({"labels": [1]}, "input_ids is missing"),
        ([1], "it must be a dict"),
    ],
)
def test_the_compiled_engine_names_a_sequence_that_it_cannot_take(tiny_llama_dir, sequence, text):
    engine = core().Engine(tiny_llama_dir)
    engine.create(tenant="base", frozen=True).result()
    with pytest.raises(InvalidError, match=f"^engine: sequence 1: {text}"):
        engine.forward(tenant="base", sequences=[{"input_ids": [1]}, sequence])


def _trained_on(directory, folder, name):
    """A PEFT directory that says so."""
    engine = Engine(directory)
    engine.tenant("me", LORA).save(folder).result()
    file = folder / "adapter_config.json"
    config = {**json.loads(file.read_text()), "base_model_name_or_path": name}
    file.write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    "take",
    [
        lambda base, adapter: Engine(base).tenant("new", adapter),
        lambda base, adapter: TransformersModel(model_id=base).add_adapter_to_model("new", adapter),
        lambda base, adapter: TorchSampler(base).sample(
            [{"input_ids": [1]}], {"max_tokens": 1}, adapter_path=adapter
        ),
    ],
)
def test_an_adapter_of_another_base_of_equal_shapes_is_taken_with_a_warning(
    tiny_llama_dir, tmp_path, logged, take
):
    for same in (tiny_llama_dir, f"somewhere/{Path(tiny_llama_dir).name}/", "", None):
        take(tiny_llama_dir, _trained_on(tiny_llama_dir, tmp_path / "same", same))
    assert logged == []
    take(tiny_llama_dir, _trained_on(tiny_llama_dir, tmp_path / "other", "Org/Another-1B"))
    (warning,) = logged
    assert "was trained on 'Org/Another-1B', the model here is " in warning
    assert warning.startswith(f"lora: the adapter at {tmp_path / 'other'} ")
