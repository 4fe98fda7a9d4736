"""A script in one process, and in several as torchrun starts them."""

import functools
import hashlib
import itertools
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from parallel.forks import HERE, Process, environment


@functools.cache
def _ports():
    """Those that may be tried: below the range from which the system gives ports to everybody else,
    and another part of them for each worker of pytest-xdist."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    last = lowest - 500 * worker
    if last < 20_500:  # ports of Ray's own workers: any that is free now must do
        return itertools.repeat(0)
    return iter(random.SystemRandom().sample(range(last - 500, last), 500))


def free_port():
    """One that nobody has, nor gets before the process that it is for binds it."""
    for port in _ports():
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return free.getsockname()[1]
    raise AssertionError("no port is free")


def told_by(processes, folder):
    """The JSON that each process wrote to the file of its rank in the folder. All end well."""
    end = time.monotonic() + 280
    ended = [process.end(max(end - time.monotonic(), 0)) for process in processes]
    errors = [error[-8000:] for status, error in ended if status != 0]
    assert not errors, "\n".join(errors)
    return [json.loads(Path(folder, str(rank)).read_text()) for rank in range(len(processes))]


def together(size, script, *arguments, **more):
    """The JSON of each of `size` processes, with the variables that torchrun sets. more: as Process
    takes it."""
    with (
        tempfile.TemporaryDirectory() as told,
        running(size, script, *arguments, TOLD=told, **more) as ranks,
    ):
        return told_by(ranks, told)


def alone(script, *arguments, **more):
    """The JSON of one process."""
    with tempfile.TemporaryDirectory() as told:
        process = Process(script, *arguments, TOLD=told, **more)
        try:
            (of_one,) = told_by([process], told)
        finally:
            process.stop()
    return of_one


def printed_by(script, *arguments, **more):
    """All that one process prints, which ends well."""
    process = Process(script, *arguments, **more)
    try:
        status, error = process.end(280)
        assert status == 0, error[-4000:]
        return process.rest()
    finally:
        process.stop()


@contextmanager
def running(size, script, *arguments, of_rank=None, **more):
    """Processes of `size` ranks, as a launcher would start them that ends none of them. of_rank:
    {rank: variables of it alone}, for which it starts anew. more: as Process takes it."""
    port, begun = free_port(), []
    try:
        for rank in range(size):
            own = (of_rank or {}).get(rank)
            own = {} if own is None else {"anew": True, **own}
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            variables = {name: str(value) for name, value in place.items()}
            begun.append(Process(script, *arguments, **variables, **more, **own))
        yield begun
    finally:
        for process in begun:
            process.stop()


def torchrun(size, script, *arguments, **more):
    """The JSON of each of `size` processes that torchrun itself starts."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc_per_node={size}", str(HERE / script), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as told:
        done = subprocess.run(
            command,
            env=environment(TOLD=told, **more),
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-20_000:]
        return [json.loads(Path(told, str(rank)).read_text()) for rank in range(size)]


def sha256(folder):
    """{name: hash} of every file of an adapter, but for the parts that each rank writes for its own
    training to go on, and the place in it."""
    files = {file.name: file for file in folder.iterdir()}
    own = [name for name in files if name.startswith("training") or name == "trainer_state.json"]
    for name in own:
        del files[name]
    assert "adapter_model.safetensors" in files and "adapter_config.json" in files
    return {n: hashlib.sha256(file.read_bytes()).hexdigest() for n, file in files.items()}


def endless(size, model, out, **more):
    """script.py on `size` ranks, which run on. more: as running takes it."""
    more |= {"ENDLESS": "1", "TOLD": str(out)}
    return running(size, "script.py", model, out, 100_000, **more)


def wait_for_steps(ranks, count):
    """Until each has done so many."""
    for rank in ranks:
        rank.wait_for(f"step {count}\n")


def ends_by_interrupt(rank):
    """The ends of an interrupted rank that the others may name. Only the first rank cancels."""
    ends = ["has ended with KeyboardInterrupt", "has gone", "has closed its engine"]
    ends.append("can't go on: its script was interrupted")
    return ends if rank else [*ends, "has cancelled it, as an interrupt of its script does"]


def the_others_say(ranks, gone, text, seconds=50):
    """Each rank but `gone` ends with an InternalError of an operation, and this text. Returns
    {rank: its error}. seconds: fewer than the 60 after which a silent rank is taken for lost."""
    said = {}
    began = time.monotonic()
    for rank in set(range(len(ranks))) - {gone}:
        status, error = ranks[rank].end(seconds)
        # Not the last line: a process may warn of what it finds at its end.
        last = (re.findall(r"^[\w.]*Error\b.*", error, re.MULTILINE) or [""])[-1]
        assert status != 0 and last.startswith("twinkle.errors.InternalError: "), error[-2000:]
        assert re.search(r"(operation|exchange) \d+, .*" + text, last), error[-2000:]
        said[rank] = error
    assert time.monotonic() - began < seconds
    return said
