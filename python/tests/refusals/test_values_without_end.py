"""Arguments that Python itself cannot write, hash or hold in a float are refused by name."""

import os

import numpy as np
import pytest

import twinkle
from twinkle import checks, hub
from twinkle.core import core
from twinkle.data_format import LoraConfig, SamplingParams
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.engine import Engine
from twinkle.errors import InvalidError, TwinkleError
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler
from twinkle.template import Template


def deep(wrap):
    value = "x"
    for _ in range(100_000):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    ("name", "beyond", "most"),
    [
        ("temperature", 1.1e30, r"1e\+30"),
        ("top_k", 2**31, 2**31 - 1),
        ("seed", 2**64, 2**64 - 1),
        ("max_tokens", 2**31, 2**31 - 1),
    ],
)
def test_numbers_beyond_64_bits(name, beyond, most):
    for value in (10**400, 10**5000, -(10**400), 2**200, beyond):
        with pytest.raises(InvalidError, match=f"^sampler: {name} is .*most {most}$"):
            SamplingParams(**{name: value})


def test_a_repetition_penalty_that_no_logit_survives():
    for value in (1e-300, 1e300):
        with pytest.raises(InvalidError, match=r"repetition_penalty is 1e[-+]300, it must"):
            SamplingParams(repetition_penalty=value)


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"a": x}, lambda x: (x,)])
def test_options_that_are_deep(wrap):
    value = deep(wrap)
    with pytest.raises(InvalidError, match=r"^engine: extras: foo is "):
        core().json_of("engine: extras", {"foo": value})
    with pytest.raises(InvalidError, match=r"^model: optimizer.foo.* is nested deeper than 128"):
        core().Loop().with_optimizer("AdamW", {"foo": value})
    with pytest.raises(InvalidError, match=r"^sampler: stop is "):
        SamplingParams(stop=[value])
    with pytest.raises(InvalidError, match=r"^lora: target_modules.* is nested deeper than 128"):
        LoraConfig(target_modules=[value])


def test_options_that_contain_themselves():
    value = []
    value.append(value)
    with pytest.raises(InvalidError, match=r"^engine: extras: foo is "):
        core().json_of("engine: extras", {"foo": value})
    with pytest.raises(InvalidError, match=r"^lora: target_modules.* is nested deeper than 128"):
        LoraConfig(target_modules=value)


NO_TEXT = os.fsdecode(b"a\xff")


def test_a_path_that_is_no_text():
    with pytest.raises(InvalidError, match=r"^hub: path is 'a.udcff', it must be UTF-8"):
        checks.path("hub: path", NO_TEXT)


@pytest.fixture(scope="module")
def model(engine_built, tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir)
    model.add_adapter_to_model("default", LoraConfig(r=1))
    return model


@pytest.fixture(scope="module")
def tenant(engine_built, tiny_llama_dir):
    return Engine(tiny_llama_dir).tenant("me", LoraConfig(r=1))


@pytest.mark.parametrize("folder", ["", "/tmp/"])
def test_a_path_that_is_no_text_is_refused_wherever_one_is_taken(model, tenant, folder):
    path = folder + NO_TEXT
    rows = Dataset(DatasetMeta(data=[{"i": 1}]))
    for call in (
        lambda: Engine(path),
        lambda: TransformersModel(model_id=path),
        lambda: Template(path),
        lambda: hub.get(path),
        lambda: Dataset(DatasetMeta(path)),
        lambda: rows.save_as(path + ".jsonl"),
        lambda: model.save("a", output_dir=path),
        lambda: model.save(path, output_dir="/tmp"),
        lambda: model.load(path),
        lambda: model.add_adapter_to_model("a", path),
        lambda: tenant.save(path),
        lambda: tenant.load(path),
        lambda: LoraConfig.from_any(path),
        lambda: core().Checkpoint(path),
        lambda: core().read_peft(path),
        lambda: core().gguf_metadata(path),
        lambda: core().Dataset.read(path),
    ):
        with pytest.raises(TwinkleError, match=r"a.udcff|a.xff|UTF-8"):
            call()


@pytest.mark.parametrize("value", [None, 5, np.array(3), "x", {}, np.array([1.5]), [2**70]])
def test_token_ids_that_are_no_sequence_of_integers(model, tenant, value):
    for call in (
        lambda: model.forward_only(inputs=[{"input_ids": value, "labels": value}]),
        lambda: tenant.forward([{"input_ids": value}]),
        lambda: tenant.logprobs([{"input_ids": value}]),
        lambda: tenant.sample([{"input_ids": value}], {"max_tokens": 1}),
        lambda: TorchSampler(model=model).sample([{"input_ids": value}]),
        lambda: model.engine.forward(tenant="adapter/default", sequences=[{"input_ids": value}]),
    ):
        with pytest.raises(TwinkleError, match="input_ids"):
            call()


@pytest.mark.parametrize("value", [10**400, -(10**5000)], ids="ab")
def test_numbers_beyond_a_float_wherever_one_is_taken(model, tenant, value):
    features = [{"input_ids": [1, 2], "labels": [2, 3]}]
    for name, call in {
        "temperature": lambda: model.forward_only(inputs=features, temperature=value),
        "temperature of a tenant": lambda: tenant.forward(features, temperature=value),
        "temperature of a sample": lambda: tenant.sample(features, {"temperature": value}),
        "lr": lambda: model.set_optimizer("AdamW", lr=value),
        "lr of a step": lambda: tenant.step(lr=value),
        "weight_decay": lambda: model.set_optimizer("AdamW", weight_decay=value),
        "max_grad_norm": lambda: model.clip_grad_and_step(max_grad_norm=value),
        "norm_type": lambda: model.clip_grad_norm(norm_type=value),
        "beta": lambda: model.set_loss("DPOLoss", beta=value),
        "weight": lambda: tenant.engine.tenant("b", {"r": 1}, weight=value),
        "lora_alpha": lambda: LoraConfig(lora_alpha=value),
        "lora: r": lambda: LoraConfig(r=value),
        "kv_tokens": lambda: Engine(tenant.engine.model_id, kv_tokens=value),
        "gather_ms": lambda: Engine(tenant.engine.model_id, gather_ms=value),
        "seed": lambda: twinkle.initialize(seed=value),
    }.items():
        with pytest.raises(TwinkleError, match=name.partition(" ")[0]):
            call()
