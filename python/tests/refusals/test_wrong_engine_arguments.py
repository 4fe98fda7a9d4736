"""Every public method of twinkle.engine, with arguments of wrong types and values: each is refused
by an error of twinkle, and nothing has changed by it."""

import pytest
from engine_batches import BATCH, LORA
from refusals.values import refuses

import twinkle
from twinkle.engine import Engine

pytestmark = pytest.mark.usefixtures("engine_built")

PROMPT = {"input_ids": [5, 6, 7]}
ONE = {"max_tokens": 1}


class World:
    """An engine with a tenant that has gradients and an optimizer; `state` must not change."""

    def __init__(self, directory, folder):
        self.directory, self.folder = str(directory), folder
        self.engine = Engine(self.directory, mixed_precision="no")
        self.tenant = self.engine.tenant("me", LORA)
        self.tenant.forward_backward(BATCH).result()
        self.tenant.step(lr=0.01).result()
        self.tenant.forward_backward(BATCH).result()
        self.tenant.publish().result()
        self.future = self.tenant.inspect()

    def state(self):
        params = {"max_tokens": 3, "seed": 1, "logprobs": 1}
        (published,) = self.tenant.sample([PROMPT], params, version=1).result()
        return (
            self.tenant.inspect().result(), published.sequences[0].logprobs,
            self.engine.stats()["tenants"].keys() - {"me"}, sorted(self.folder.rglob("*")),
        )  # fmt: skip


@pytest.fixture(scope="module")
def world(tiny_llama_dir, tmp_path_factory):
    return World(tiny_llama_dir, tmp_path_factory.mktemp("folder"))


def option(name):
    return lambda w, v: Engine(w.directory, **{name: v})


def raw_option(name):
    return lambda w, v: twinkle.core.core().Engine(w.directory, **{name: v})


def sampled(name):
    return lambda w, v: w.tenant.sample([PROMPT], {**ONE, name: v})


def create(name):
    return lambda w, v: w.engine.tenant(**{"name": "new", "lora_config": LORA, name: v})


_NONE = {"None"}
_SIZES = {"None", "5"}
_COUNTS = {"None", "5", "0"}
_POSITIVE = {"5", "1.5", "2**70"}

# Calls with a value in one place: {name: (call, names of the values that are right there)}.
CALLS = {
    "Engine(model_id)": (lambda w, v: Engine(v), set()),
    "Engine(mixed_precision)": (option("mixed_precision"), _NONE),
    "Engine(deterministic)": (option("deterministic"), {"None", "True"}),
    "Engine(token_budget)": (option("token_budget"), _SIZES),
    "Engine(kv_tokens)": (option("kv_tokens"), _SIZES),
    "Engine(activation_bytes)": (option("activation_bytes"), _COUNTS),
    "Engine(max_sequences)": (option("max_sequences"), _SIZES),
    "Engine(prefill_tokens)": (option("prefill_tokens"), _SIZES),
    "Engine(sampling_share)": (option("sampling_share"), _NONE),
    "Engine(gather_ms)": (option("gather_ms"), {"None", "5", "0", "1.5"}),
    "Engine(max_queued)": (option("max_queued"), _SIZES),
    "Engine(max_queued_total)": (option("max_queued_total"), _SIZES),
    "Engine(resident_bytes)": (option("resident_bytes"), {"None", "0", "-1"}),
    "Engine(park_directory)": (option("park_directory"), {"None", "text", "empty text"}),
    "Engine(unknown)": (option("unknown"), set()),
    "_core.Engine(token_budget)": (raw_option("token_budget"), _SIZES),
    "_core.Engine(max_queued)": (raw_option("max_queued"), _SIZES),
    "_core.Engine(sampling_share)": (raw_option("sampling_share"), _NONE),
    "_core.Engine(unknown)": (raw_option("unknown"), set()),
    "tenant(name)": (create("name"), {"text"}),
    "tenant(lora_config)": (create("lora_config"), {"None", "dict"}),
    "tenant(seed)": (create("seed"), {"0", "5"}),
    "tenant(weight)": (create("weight"), {"5", "1.5"}),
    "tenant(priority)": (create("priority"), {"5", "0", "-1"}),
    "tenant(full_parameters)": (create("full_parameters"), set()),
    "forward(inputs)": (lambda w, v: w.tenant.forward(v), set()),
    "forward(temperature)": (lambda w, v: w.tenant.forward(BATCH, temperature=v), _POSITIVE),
    "forward_backward(inputs)": (lambda w, v: w.tenant.forward_backward(v), set()),
    "step(optimizer)": (lambda w, v: w.tenant.step(v), set()),
    "step(max_grad_norm)": (
        lambda w, v: w.tenant.step(max_grad_norm=v), _POSITIVE | {"0", "inf"}),
    "clip_grad_norm": (lambda w, v: w.tenant.clip_grad_norm(v), _POSITIVE | {"0", "inf"}),
    "sample(prompts)": (lambda w, v: w.tenant.sample(v), set()),
    "sample([prompts])": (lambda w, v: w.tenant.sample([v]), set()),
    "sample(input_ids)": (lambda w, v: w.tenant.sample([{"input_ids": v}], ONE).result(), set()),
    "sample(sampling_params)": (
        lambda w, v: w.tenant.sample([PROMPT], v), {"None", "dict", "list of None"}),
    "sample(version)": (lambda w, v: w.tenant.sample([PROMPT], ONE, version=v).result(), {"0"}),
    "sample(max_tokens)": (sampled("max_tokens"), {"None", "5", "0"}),
    "sample(stop)": (sampled("stop"), {"None", "text", "list"}),
    "sample(num_samples)": (sampled("num_samples"), {"5"}),
    "sample_stream(prompt)": (lambda w, v: w.tenant.sample_stream(v, ONE), set()),
    "sample_stream(input_ids)": (
        lambda w, v: w.tenant.sample_stream({"input_ids": v}, ONE).result(), set()),
    "sample_stream(sampling_params)": (
        lambda w, v: w.tenant.sample_stream(PROMPT, v), {"None", "dict"}),
    "sample_stream(version)": (
        lambda w, v: w.tenant.sample_stream(PROMPT, ONE, version=v).result(), {"0"}),
    "TokenStream.result(timeout)": (
        lambda w, v: w.tenant.sample_stream(PROMPT, ONE).result(v), _POSITIVE | {"None", "0"}),
    "release(version)": (lambda w, v: w.tenant.release(v).result(), set()),
    "save(directory)": (lambda w, v: w.tenant.save(v), {"text"}),
    "save(max_shard_size)": (
        lambda w, v: w.tenant.save(w.folder / "new", max_shard_size=v).result(), _NONE),
    "load(directory)": (lambda w, v: w.tenant.load(v).result(), set()),
    "inspect(tensors)": (lambda w, v: w.tenant.inspect(v), {"True"}),
    "result(timeout)": (lambda w, v: w.future.result(v), _POSITIVE | {"None", "0"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused_and_change_nothing(world, name, monkeypatch):
    monkeypatch.chdir(world.folder)
    call, right = CALLS[name]
    before = world.state()
    refuses(name, lambda value: call(world, value), right)
    assert world.state() == before
