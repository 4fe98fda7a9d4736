"""Adapters and samplers that many threads use at the same time, from the first call on."""

import sys
import threading
import time

import pytest
from features import drawn

from twinkle import LoraConfig, NotFoundError, TwinkleError
from twinkle.model import MultiLoraTransformersModel, TransformersModel
from twinkle.model.group import Group
from twinkle.sampler import TorchSampler

pytestmark = pytest.mark.usefixtures("engine_built")

NUM_THREADS = 6


@pytest.fixture(autouse=True)
def _often_interrupted():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work):
    """The class of the exception of work(i) in each of some threads; None where it raised
    nothing."""
    barrier, out = threading.Barrier(NUM_THREADS), [None] * NUM_THREADS

    def run(i):
        barrier.wait()
        try:
            work(i)
        except Exception as error:
            out[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


@pytest.fixture(scope="module")
def multi(tiny_llama_dir):
    def make(**options):
        return MultiLoraTransformersModel(model_id=tiny_llama_dir, **options)

    return make


def adding(model):
    return lambda i: model.add_adapter_to_model(f"a{i}", LoraConfig(r=2))


def test_first_adapters_of_many_threads_are_all_there(multi, monkeypatch):
    def slowly(self, other):
        time.sleep(0.02)
        take(self, other)

    take = Group.take_settings
    monkeypatch.setattr(Group, "take_settings", slowly)
    model = multi(max_loras=NUM_THREADS)
    assert at_once(adding(model)) == [None] * NUM_THREADS
    assert sorted(model._groups) == [f"a{i}" for i in range(NUM_THREADS)]
    assert all(group.template is not None for group in model._groups.values())


def test_max_loras_holds_whoever_is_first_and_a_refused_name_is_free(multi):
    for _ in range(3):
        model = multi(max_loras=2)
        raised = at_once(adding(model))
        refused = [i for i, error in enumerate(raised) if error is not None]
        assert len(model._groups) == 2 == NUM_THREADS - len(refused)
        assert all("max_loras is 2" in str(raised[i]) for i in refused)
        assert all(isinstance(raised[i], TwinkleError) for i in refused)
        model.remove_adapter(next(iter(model._groups)))
        model.add_adapter_to_model(f"a{refused[0]}", LoraConfig(r=2))


def test_a_failed_add_leaves_nothing_behind(multi):
    model = multi(max_loras=1)
    with pytest.raises(TwinkleError):
        model.add_adapter_to_model("a", LoraConfig(target_modules=["nothing"]))
    model.add_adapter_to_model("a", LoraConfig(r=2))


def test_the_base_model_is_sampled_by_many_threads(multi, tiny_llama_dir):
    model = multi()
    samplers = [TorchSampler(model=model) for _ in range(NUM_THREADS)]
    alone = TorchSampler(tiny_llama_dir)
    prompt, params = {"input_ids": [1, 2, 3]}, {"max_tokens": 2, "seed": 1}
    assert at_once(
        lambda i: samplers[i].sample(prompt, params, use_base_model=True)
    ) == [None] * NUM_THREADS  # fmt: skip
    assert at_once(lambda _: alone.sample(prompt, params)) == [None] * NUM_THREADS


def test_adapters_of_directories_are_sampled_by_many_threads(multi, tiny_llama_dir, tmp_path):
    model = multi()
    for i in range(2):
        model.add_adapter_to_model(f"a{i}", LoraConfig(r=2))
        model.save(f"a{i}", output_dir=tmp_path, adapter_name=f"a{i}")
    sampler = TorchSampler(tiny_llama_dir)  # it keeps one

    def sample(i):
        for k in range(4):
            sampler.sample(
                {"input_ids": [1, 2]},
                {"max_tokens": 2},
                adapter_path=str(tmp_path / f"a{(i + k) % 2}"),
            )

    assert at_once(sample) == [None] * NUM_THREADS
    [(_, kept)] = sampler._tenants.loaded.values()
    _, name, count, directory = kept.split("/", 3)
    made = [
        f"sampler/{name}/{i}/{directory[:-1]}{k}" for i in range(int(count) + 1) for k in range(2)
    ]
    assert len(made) > 2
    assert [each for each in made if is_held(sampler.engine, each)] == [kept]


def is_held(engine, tenant):
    try:
        engine.inspect(tenant=tenant).result()
    except NotFoundError:
        return False
    return True


@pytest.mark.parametrize("adapters", [["a"], []])
def test_passes_of_many_threads_on_the_same_weights_are_all_counted(tiny_llama_dir, adapters):
    model = TransformersModel(model_id=tiny_llama_dir)
    for name in adapters:
        model.add_adapter_to_model(name, LoraConfig(r=2))
    batch = drawn([20, 9], seed=1)

    def train(_):
        for _ in range(3):
            model.forward_backward(inputs=batch)

    assert at_once(train) == [None] * NUM_THREADS
    group = model._group()
    assert group.accumulated == group.cur_step == 3 * NUM_THREADS
    held = model.engine.inspect(tenant=group.tenant).result()["num_tokens"]
    model.clip_grad_and_step()
    model.forward_backward(inputs=batch)
    one = model.engine.inspect(tenant=group.tenant).result()["num_tokens"]
    assert held == 3 * NUM_THREADS * one
