"""Processes that end while an engine works, and forks of those that have one."""

import subprocess
import sys
import textwrap
import threading

import pytest

pytestmark = pytest.mark.usefixtures("engine_built")

BEGIN = """
import gc, multiprocessing, os, sys, threading, time
from twinkle import InvalidError, LoraConfig
from twinkle.engine import Engine

engine = Engine(sys.argv[1])
tenant = engine.tenant("a", LoraConfig(r=2))
ids = list(range(3, 203))
batch = [{"input_ids": ids, "labels": [*ids[1:], -100]}] * 8
prompt = {"input_ids": [5, 6]}
"""


def run(directory, script):
    """The lines of its standard output; it has to end well, and soon after its last statement."""
    script = f"{BEGIN}{textwrap.dedent(script)}\nprint('ends', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", script, directory],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # so that communicate() gets all that no line has
    ) as process:
        hangs = threading.Timer(300, process.kill)
        hangs.start()
        lines = []
        try:
            while (line := process.stdout.readline()) not in (b"ends\n", b""):
                lines.append(line.decode().rstrip("\n"))
            rest, error = process.communicate(timeout=60)
        finally:
            hangs.cancel()
            process.kill()
    assert (process.returncode, rest, error.decode()) == (0, b"", "")
    return lines


def test_a_process_ends_while_its_threads_wait(tiny_llama_dir):
    script = """
    def train():
        while True:
            tenant.forward_backward(batch).result()

    def stream():
        while True:
            for _ in tenant.sample_stream(prompt, {"max_tokens": 100}):
                pass

    def sample_with_an_engine_of_its_own():
        mine = Engine(sys.argv[1]).tenant("b")
        while True:
            mine.sample([prompt], {"max_tokens": 100}).result()

    def encode():
        template = engine.template()
        while True:
            template.batch_encode([{"messages": [{"role": "user", "content": "x" * 5000}]}] * 20)

    for work in (train, train, stream, sample_with_an_engine_of_its_own, encode):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.3)
    """
    assert run(tiny_llama_dir, script) == []


def test_a_process_that_ends_stops_what_runs(tiny_llama_dir):
    script = """
    def sample():  # for minutes
        tenant.sample([prompt] * 1_000, {"max_tokens": 400}).result()

    def train():
        tenant.forward_backward(batch * 200).result()

    threading.Thread(target=sample, daemon=True).start()
    while engine.stats()["num_sampling_steps"] < 2:
        time.sleep(0.01)
    threading.Thread(target=train, daemon=True).start()
    while engine.stats()["num_passes"] < 1:
        time.sleep(0.01)
    """
    assert run(tiny_llama_dir, script) == []


def test_an_engine_lives_until_the_last_result_is_taken(tiny_llama_dir):
    script = """
    def num_threads():
        return len(os.listdir("/proc/self/task"))

    futures = [f for _ in range(20) for f in (tenant.forward_backward(batch), tenant.step())]
    stream = tenant.sample_stream(prompt, {"max_tokens": 3})
    del engine, tenant
    gc.collect()
    print(futures[-1].result().step, len(list(stream)))
    before = num_threads()
    for future in futures:
        future.result()
    print(num_threads() < before)
    """
    assert run(tiny_llama_dir, script) == ["20 3", "True"]


def test_a_fork_is_refused_and_ends_at_once(tiny_llama_dir):
    script = """
    future = tenant.forward_backward(batch * 8)
    stream = tenant.sample_stream(prompt, {"max_tokens": 400})

    def child():
        works = (future.cancel, future.result, engine.stats, lambda: next(stream),
                 lambda: tenant.sample([prompt]), lambda: Engine(sys.argv[1]))
        for work in works:
            try:
                work()
            except InvalidError as error:
                print(error.args[0].split()[1], flush=True)

    def wait(pid):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return print("ended", status, flush=True)
            time.sleep(0.01)
        os.kill(pid, 9)
        print("hangs", flush=True)

    if (pid := os.fork()) == 0:
        child()
        with stream:
            sys.exit(0)
    wait(pid)
    if (pid := os.fork()) == 0:
        del tenant, future, stream, engine, child
        gc.collect()
        os._exit(0)
    wait(pid)
    process = multiprocessing.get_context("fork").Process(target=len, args=([],))
    process.start()
    process.join(60)
    print(process.exitcode)
    print(future.result().num_tokens > 0 and len(stream.result().sequences[0].tokens) > 0)
    """
    refused = ["made", "the", "made", "the", "made", "made"]
    want = [*refused, "ended 0", "ended 0", "0", "True"]
    assert run(tiny_llama_dir, script) == want
