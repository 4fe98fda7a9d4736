"""A process per system that stays alive and takes one command at a time over pipes.

    python bench/worker.py SYSTEM      SYSTEM: a module system_*.py with a class System

One JSON line in: {"call": name, ...arguments}; one out: {"value": ...} or {"error": text}. Only
one worker is ever asked at a time, so that only one computes. System's methods are the commands.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path


class WorkerError(RuntimeError):
    """A command failed in its worker; the text is the worker's."""


class Worker:
    """The asking side. Use as a context manager: the process ends with it."""

    def __init__(self, system, threads):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
        }
        threads = str(threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        self.system = system
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), system],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, call, **arguments):
        self._process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise WorkerError(f"bench: {self.system} ended in {call}, exit {self._process.wait()}")
        answer = json.loads(answer)
        if "error" in answer:
            raise WorkerError(f"bench: {self.system}: {call}: {answer['error']}")
        return answer["value"]


def peak_rss_mib():
    """VmHWM of this process, MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise WorkerError("bench: /proc/self/status has no VmHWM")


def serve(system):
    """Answers until standard input ends. Whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            call = command.pop("call")
            value = peak_rss_mib() if call == "peak_rss_mib" else getattr(system, call)(**command)
            answer = {"value": value}
        except Exception as error:  # the asking side raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(importlib.import_module(sys.argv[1]).System())
