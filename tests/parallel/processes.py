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
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent


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


def environment(**more):
    paths = os.pathsep.join(map(str, sys.path))
    return {
        **os.environ,
        "TWINKLE_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": paths,
    } | more


def run(command, cwd=None, **more):
    """What each process tells, in the order of ranks: JSON in the file of its rank in $TOLD."""
    with tempfile.TemporaryDirectory() as told:
        done = subprocess.run(
            command,
            env=environment(TOLD=told, **more),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-20_000:]
        files = sorted(Path(told).iterdir(), key=lambda file: int(file.name))
        return [json.loads(file.read_text()) for file in files]


def alone(script, *arguments, **more):
    (told,) = run([sys.executable, str(HERE / script), *map(str, arguments)], **more)
    return told


def torchrun(size, script, *arguments, **more):
    """What each of `size` processes tells."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc_per_node={size}", str(HERE / script), *map(str, arguments)]
    told = run(command, **more)
    assert len(told) == size
    return told


def sha256(folder):
    """{name: hash} of every file of an adapter, but for the parts that each rank writes for its own
    training to go on, and the place in it."""
    files = {file.name: file for file in folder.iterdir()}
    own = [name for name in files if name.startswith("training") or name == "trainer_state.json"]
    for name in own:
        del files[name]
    assert "adapter_model.safetensors" in files and "adapter_config.json" in files
    return {n: hashlib.sha256(file.read_bytes()).hexdigest() for n, file in files.items()}


class Ranks:
    """script.py, endless, on `size` ranks, as a launcher would start it that ends none of them.
    of_rank: {rank: variables of it alone}."""

    def __init__(self, size, model, out, of_rank=None, **more):
        port = free_port()
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / "script.py"), str(model), str(out), "100000"],
                env=environment(
                    RANK=str(rank),
                    WORLD_SIZE=str(size),
                    LOCAL_RANK=str(rank),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                    ENDLESS="1",
                    TOLD=str(out),
                    **more,
                    **(of_rank or {}).get(rank, {}),
                ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait_for_steps(self, count):
        self.wait_for(f"step {count}")

    def wait_for(self, text):
        """Until each has printed the text."""
        for process in self.processes:
            while text not in (line := process.stdout.readline()):
                assert line, self.all_ends()

    def all_ends(self):
        """What all have said, one of which has ended: the others are ended."""
        for process in self.processes:
            process.kill()
        return "\n".join(process.communicate()[1][-4000:] for process in self.processes)

    def end_of(self, rank, seconds):
        _, err = self.processes[rank].communicate(timeout=seconds)
        return self.processes[rank].returncode, err


def ends_by_interrupt(rank):
    """What other ranks may be told of one that is interrupted, by where it is."""
    ends = ["has ended with KeyboardInterrupt", "has gone", "has closed its engine"]
    ends.append("can't go on: its script was interrupted")
    return ends if rank else [*ends, "has cancelled it, as an interrupt of its script does"]


def the_others_say(ranks, gone, text, seconds=50):
    """Each rank but `gone` ends with an InternalError of an operation, and this text. What each has
    said, by its number. seconds: fewer than the 60 after which a silent rank is taken for lost."""
    said = {}
    began = time.monotonic()
    for rank in set(range(len(ranks.processes))) - {gone}:
        status, error = ranks.end_of(rank, seconds)
        # Not the last line: a process may warn of what it finds at its end.
        last = (re.findall(r"^[\w.]*Error\b.*", error, re.MULTILINE) or [""])[-1]
        assert status != 0 and last.startswith("twinkle.errors.InternalError: "), error[-2000:]
        assert re.search(r"(operation|exchange) \d+, .*" + text, last), error[-2000:]
        said[rank] = error
    assert time.monotonic() - began < seconds
    return said
