"""A worker: the process of one rank of a DeviceGroup. It holds the rank's part of every object
that was made with remote_group=, and is to that object what a process of torchrun is."""

import gc
import os
from pathlib import Path

from twinkle.logger import get_logger
from twinkle.platform import find_free_port
from twinkle.remote import held
from twinkle.remote.messages import DROP, KEEP, REFER, Failure, Outcome
from twinkle.remote.rows import rows_from
from twinkle.remote.stopped import end_when_stopped


class Worker:
    """The actor's class. Calls run one after the other, in the order in which they were sent."""

    def __init__(self):
        self._failures = 0
        self._made = set()  # keys of objects, not of results
        self._actions = {
            "make": self._make,
            "call": self._call,
            "iterate": self._iterate,
            "next": self._next,
            "fetch": self._fetch,
        }

    def address(self):
        """(IP address of this machine in the cluster, a free port of it)."""
        import ray

        return ray.util.get_node_ip_address(), find_free_port()

    def begin(self, environment, folder, settings):
        """Makes this process a rank: sets its environment, and what initialize() would. folder: the
        driver's, to which relative paths belong, where this machine has it."""
        os.environ.update(environment)
        go_to(folder, environment["WORKER_NAME"])
        from twinkle import infra
        from twinkle.engine.group import timeout_seconds

        infra.initialize(mode="local", **settings)
        infra.current_run().worker_of = environment["CLUSTER_NAME"]
        end_when_stopped(timeout_seconds())
        return os.getpid()

    def run(self, call):
        """Does what a Call says; its Outcome."""
        import ray

        for key in call.forget:
            held.table.pop(key, None)
        if not self._made.isdisjoint(call.forget):
            # What cycles keep is freed here, on all ranks: an engine's end waits for the others'.
            self._made.difference_update(call.forget)
            gc.collect()
        if self._failures > call.failures:
            return Outcome(skipped=True)
        try:
            with rows_from(call.first_row, call.cut):
                value = self._actions[call.kind](call)
        except Exception as error:
            if call.kind == "next" and isinstance(error, StopIteration):
                return Outcome(stopped=True)
            self._failures += 1
            return Outcome(failure=Failure.of(error))
        if call.answer == KEEP:
            held.table[call.keep_as] = value
            return Outcome(length=len(value) if isinstance(value, (list, tuple)) else None)
        if call.answer == REFER:
            value = ray.put(value)
        return Outcome() if call.answer == DROP else Outcome(value)

    def _make(self, call):
        self._made.add(call.key)
        held.table[call.key] = call.what(*call.args, **call.kwargs)

    def _call(self, call):
        return getattr(held.table[call.key], call.what)(*call.args, **call.kwargs)

    def _iterate(self, call):
        held.table[call.keep_as] = iter(held.table[call.key])
        call.answer = DROP

    def _next(self, call):
        return next(held.table[call.key])

    def _fetch(self, call):
        return held.table[call.key]


def go_to(folder, worker):
    """To the driver's folder; where this machine has none such, that is logged."""
    if Path(folder).is_dir():
        os.chdir(folder)
        return
    get_logger().warning(
        f"infra: the machine of worker {worker} has no folder {folder}, which is the driver's: "
        f"relative paths are of {Path.cwd()} there: give absolute ones, or make the folder"
    )
