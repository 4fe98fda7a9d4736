"""Ctrl-C, whenever it comes: what the engine holds is what Python counts."""

import json
import os
import random
import re
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from features import drawn
from zero_files import WIDE_LORA, WIDTH, zero_adapter, zero_llama

from twinkle import LoraConfig, NotFoundError
from twinkle.core import core
from twinkle.ledger import Ledger
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler

pytestmark = pytest.mark.usefixtures("engine_built")

BATCHES = [drawn([20 + i, 9], seed=i) for i in range(12)]
SGD = {"optimizer_cls": "SGD", "lr": 0.5}


def mean_loss(inputs, outputs, **_):
    """A loss in Python, which takes two passes."""
    return -outputs["logps"].sum() / (inputs["labels"] != -100).sum()


@pytest.fixture
def trained(tiny_llama_dir):
    """trained(loss): a model with one adapter that has made a step."""

    def make(loss="CrossEntropyLoss"):
        model = TransformersModel(model_id=tiny_llama_dir)
        model.add_adapter_to_model("a", LoraConfig(r=4, target_modules="all-linear"))
        model.set_loss(loss)
        model.set_optimizer(**SGD)
        model.set_lr_scheduler("CosineAnnealingLR", T_max=40)
        model.forward_backward(inputs=BATCHES[0])
        model.clip_grad_and_step()
        return model

    return make


def interrupted(after, call):
    """Sends SIGINT so many seconds after the call has begun; waits for it in any case."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        call()
        time.sleep(60)
    timer.join()


def interrupted_at(count, files, call):
    """Raises KeyboardInterrupt before the count-th instruction that these files run. False: there
    are fewer, and the call has ended."""
    left = count

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def held(model):
    """num_tokens that the engine has accumulated, and the steps that it has taken."""
    found = model.engine.inspect(tenant=model._group("a").tenant).result()
    return found["num_tokens"], found["step"]


def replayed(model, batches):
    """The norm that a step after these batches reports, and the weights after it."""
    for batch in batches:
        model.forward_backward(inputs=batch)
    return stepped(model)


def stepped(model):
    return model.clip_grad_and_step(), model.get_state_dict()


def same(a, b):
    return a[0] == b[0] and all(np.array_equal(a[1][name], b[1][name]) for name in a[1])


@pytest.mark.parametrize("loss", ["CrossEntropyLoss", mean_loss])
def test_an_interrupted_batch_is_counted_or_was_never_there(trained, loss):
    model, counted, draw = trained(loss), [], random.Random(5)
    began = time.perf_counter()
    trained(loss).forward_backward(inputs=BATCHES[1])
    longest = min(0.02, 1.2 * (time.perf_counter() - began))
    for batch in BATCHES * 2:
        steps = model._group().cur_step
        interrupted(draw.uniform(0, longest), partial(model.forward_backward, inputs=batch))
        if model._group().cur_step > steps:
            counted.append(batch)
        assert (held(model)[0] > 0) == (model._group().accumulated > 0)
    counted.append(BATCHES[3])
    model.forward_backward(inputs=BATCHES[3])
    assert model._group().accumulated == len(counted)
    assert same(stepped(model), replayed(trained(loss), counted))


@pytest.mark.parametrize("loss", ["CrossEntropyLoss", mean_loss])
def test_an_interrupt_at_any_instruction_leaves_engine_and_python_agreed(trained, loss):
    files = ("twinkle/ledger.py", "model/group.py", "model/transformers_model.py")
    model, count = trained(loss), 1
    model.forward_backward(inputs=BATCHES[1])
    one = held(model)[0]
    while interrupted_at(count, files, lambda: model.forward_backward(inputs=BATCHES[1])):
        assert held(model)[0] == one * model._group().accumulated
        count += 7
    assert 1 < model._group().accumulated < count / 7 and count > 200


def test_an_interrupted_step_is_counted_with_its_schedule_or_was_never_there(trained):
    model, count = trained(), 1
    group = model._group()
    files = ("twinkle/ledger.py", "model/group.py", "model/transformers_model.py")
    while True:
        if group.accumulated == 0:
            model.forward_backward(inputs=BATCHES[1])
        going = interrupted_at(count, files, model.clip_grad_and_step)
        tokens, steps = held(model)
        assert (tokens == 0) == (group.accumulated == 0)
        assert steps == group.iters == group.lr_step
        if not going:
            break
        count += 5
    assert count > 100 and group.iters > 2


def test_zero_grad_after_an_interrupt_leaves_nothing(trained):
    model = trained()
    interrupted(0.002, lambda: model.forward_backward(inputs=BATCHES[1]))
    model.zero_grad()
    assert held(model)[0] == 0
    assert same(replayed(model, BATCHES[2:3]), replayed(trained(), BATCHES[2:3]))


def test_an_interrupted_load_took_all_or_nothing(trained, tmp_path):
    saved = trained()
    saved.forward_backward(inputs=BATCHES[2])
    folder = saved.save("saved", output_dir=tmp_path, save_optimizer=True)
    files, count = ("twinkle/ledger.py", "model/group.py", "model/checkpoint.py"), 1
    seen, going, load = set(), True, partial(saved.load, folder, load_optimizer=True)
    while going:
        load()
        saved.clip_grad_and_step()
        going = interrupted_at(count, files, load)
        tokens, steps = held(saved)
        group = saved._group()
        assert ((tokens > 0), steps) == ((group.accumulated > 0), group.iters)
        seen.add(steps)
        count += 23
    assert seen == {1, 2}


def test_what_was_loaded_is_forgotten_by_zero_grad_whoever_saved_it(trained, tmp_path):
    model = trained()
    model.forward_backward(inputs=BATCHES[2])
    tenant = model._group().tenant
    model.engine.save(tenant=tenant, directory=str(tmp_path / "a"), optimizer=True).result()
    model.clip_grad_and_step()
    model.load(str(tmp_path / "a"), load_optimizer=True)  # without Python's counters
    assert held(model)[0] > 0
    model.zero_grad()
    assert held(model)[0] == 0


def test_an_interrupted_add_leaves_the_adapter_or_its_name(tiny_llama_dir):
    model, count, going, seen = TransformersModel(model_id=tiny_llama_dir), 1, True, set()
    files = ("twinkle/ledger.py", "model/adapters.py")
    while going:
        name = f"a{count}"
        going = interrupted_at(
            count, files, partial(model.add_adapter_to_model, name, LoraConfig())
        )
        with model._lock:
            model._tenants.settle()
        seen.add(name in model._groups)
        if name not in model._groups:
            model.add_adapter_to_model(name, LoraConfig())  # the name is free
        model.forward_only(inputs=BATCHES[1], adapter_name=name)
        model.remove_adapter(name)
        count += 11
    assert seen == {True, False}


def test_a_handler_that_saves_meanwhile_saves_what_is_counted(trained, tmp_path):
    model, saved = trained(), []

    def save(*_):
        saved.append(model.save("s", output_dir=tmp_path, save_optimizer=True))

    before = signal.signal(signal.SIGUSR1, save)
    try:
        big = drawn([500] * 8)
        timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        model.forward_backward(inputs=big)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert saved and model._group().accumulated == 1
    tokens = held(model)[0]
    again = trained()
    again.load(saved[0], load_optimizer=True)
    assert (again._group().accumulated, held(again)[0]) in {(1, tokens), (0, 0)}


def test_an_interrupted_sample_stops_in_the_engine(tiny_llama_dir):
    sampler = TorchSampler(tiny_llama_dir)
    params = {"max_tokens": 480, "num_samples": 128, "seed": 1, "temperature": 1.5}
    sampler.sample({"input_ids": [5]}, {"max_tokens": 1})
    interrupted(0.05, lambda: sampler.sample({"input_ids": [5]}, params))
    deadline = time.monotonic() + 5
    while sampler.engine.stats()["num_queued"] and time.monotonic() < deadline:
        time.sleep(0.001)
    ended = sampler.engine.stats()
    assert ended["num_queued"] == 0
    assert ended["num_sampling_steps"] < 480  # it would take so many
    time.sleep(0.05)
    assert sampler.engine.stats()["num_sampling_steps"] == ended["num_sampling_steps"]


@pytest.mark.parametrize("submitted", [False, True])
def test_an_interrupt_leaves_no_adapter_that_the_sampler_has_forgotten(
    trained, tmp_path, submitted
):
    model = trained()
    paths = [model.save(name, output_dir=tmp_path) for name in ("a", "b", "c")]
    sampler, made, forgotten = TorchSampler(model_id=model.model_id), [], []
    engine = sampler.engine

    class Engine:
        """The engine, whose first call of `delete` is interrupted."""

        def __getattr__(self, name):
            return getattr(engine, name)

        def create(self, **arguments):
            made.append(arguments["tenant"])
            return engine.create(**arguments)

        def delete(self, tenant):
            forgotten.append(tenant)
            if submitted or len(forgotten) > 1:
                engine.delete(tenant=tenant)
            if len(forgotten) == 1:
                raise KeyboardInterrupt

    def sample(path):
        sampler.sample({"input_ids": [5]}, {"max_tokens": 1}, adapter_path=path)

    sampler.engine = Engine()
    sample(paths[0])
    with pytest.raises(KeyboardInterrupt):
        sample(paths[1])
    sample(paths[1])
    assert [is_held(engine, name) for name in made] == [False, True]
    sample(paths[2])
    assert [is_held(engine, name) for name in made] == [False, False, True]
    sampler.shutdown()
    assert not any(is_held(engine, name) for name in made)


def is_held(engine, tenant):
    try:
        engine.inspect(tenant=tenant).result()
    except NotFoundError:
        return False
    return True


def test_ctrl_c_while_an_operations_files_are_read_submits_nothing(tmp_path):
    zeros = zero_adapter(tmp_path / "zeros")
    engine = core().Engine(zero_llama(tmp_path / "model", vocab_size=64))
    engine.create(tenant="a", lora_json=json.dumps(WIDE_LORA)).result()
    before = engine.inspect(tenant="a").result()
    interrupted(0.01, lambda: engine.load(tenant="a", directory=zeros))
    stats = engine.stats()
    assert stats["num_queued"] == stats["queued_bytes"] == 0
    assert engine.inspect(tenant="a").result() == before
    engine.load(tenant="a", directory=zeros).result()
    assert engine.inspect(tenant="a").result() != before


def num_read():
    """The bytes that this process has read so far."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])


def test_ctrl_c_while_a_models_files_are_read_ends_the_reading_and_makes_no_engine(tmp_path):
    model, made = zero_llama(tmp_path / "model", vocab_size=2**20), []
    before = num_read()
    interrupted(0.01, lambda: made.append(core().Engine(model)))
    assert made == [] and num_read() - before < 4 * WIDTH * 2**20


class Ended:
    """An operation's future."""

    def result(self):
        return {}

    def cancel(self):
        return False


def test_a_handler_that_runs_before_an_operation_is_submitted_loses_none():
    ledger = Ledger(count=0)

    def operation():
        ledger.settle()
        ledger.run(Ended, lambda _: {"count": ledger.count + 1})
        return Ended()

    ledger.run(operation, lambda _: {"count": ledger.count + 1})
    assert ledger.count == 2


def test_a_thread_that_waits_for_another_ones_operation_is_interrupted():
    ledger, begun, end = Ledger(count=0), threading.Event(), threading.Event()

    def operation():
        begun.set()
        end.wait(60)
        return Ended()

    def changes(_):
        return {"count": ledger.count + 1}

    thread = threading.Thread(target=ledger.run, args=(operation, changes))
    thread.start()
    begun.wait(60)
    interrupted(0.02, lambda: ledger.run(operation, changes))
    end.set()
    thread.join()
    ledger.run(operation, changes)
    assert ledger.count == 2
