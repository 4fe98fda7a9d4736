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

    def close_input(self):
        """Its process ends, by itself."""
        self._process.stdin.close()

    def __exit__(self, *_):
        self.close_input()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, call, **arguments):
        self.begin(call, **arguments)
        return self.answer(call)

    def kill(self):
        self._process.kill()

    def begin(self, call, **arguments):
        """As ask, whose value answer() waits for."""
        self._process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self, call):
        answer = self._process.stdout.readline()
        if not answer:
            raise WorkerError(f"bench: {self.system} ended in {call}, exit {self._process.wait()}")
        answer = json.loads(answer)
        if "error" in answer:
            raise WorkerError(f"bench: {self.system}: {call}: {answer['error']}")
        return answer["value"]


def with_model(stack, run, system, precision="bf16"):
    """A worker of the run's with its model loaded: one that the run keeps for several questions, or
    a process of its own, which ends with the stack."""
    if run.kept is not None:
        return run.kept.worker(run, system, precision)
    return stack.enter_context(opened(run, system, precision))


def opened(run, system, precision):
    worker = Worker(system, run.threads)
    options = {"options": run.options} if system.startswith("system_twinkle") else {}
    worker.ask("load", model=run.model, device=run.device, precision=precision, **options)
    return worker


# Combines both: one process for both.
WIDER = {"system_twinkle": "system_twinkle_batch", "system_peft": "system_peft_batch"}


class Kept:
    """Workers whose model stays loaded from one question to the next: it takes longer to read than
    to use. Of one model and one list of options at a time. Use as a context manager."""

    def __init__(self):
        self._workers, self._of = {}, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        while self._workers:
            self._workers.popitem()[1].__exit__()

    def worker(self, run, system, precision):
        """One in which no tenant is left of the questions before."""
        of = run.model, run.options, precision
        if self._of != of:
            self.close()
            self._of = of
        system = WIDER.get(system, system)
        if system not in self._workers:
            self._workers[system] = opened(run, system, precision)
        self._workers[system].ask("forget")
        return self._workers[system]


def peak_rss_mib():
    """VmHWM of this process, MiB."""
    return status_mib("self", "VmHWM")


def rss_mib(pid="self"):
    """VmRSS of a process, MiB."""
    return status_mib(pid, "VmRSS")


def status_mib(pid, name):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise WorkerError(f"bench: /proc/{pid}/status has no {name}")


def serve(system):
    """Answers until standard input ends. Whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"value": getattr(system, command.pop("call"))(**command)}
        except Exception as error:  # the asking side raises it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(importlib.import_module(sys.argv[1]).System())
