"""A worker: the process of one rank of a DeviceGroup. It holds the rank's part of every object
that was made with remote_group=, and is to that object what a process of torchrun is."""

import gc
import os
from contextlib import contextmanager
from pathlib import Path

from twinkle.errors import InternalError, InvalidError, TwinkleError, require
from twinkle.logger import get_logger
from twinkle.platform import find_free_port, timeout_seconds
from twinkle.remote.collect import join
from twinkle.remote.gone import why_gone
from twinkle.remote.lazy import cut, num_rows
from twinkle.remote.messages import Failure, Outcome, pack
from twinkle.remote.rows import rows_from
from twinkle.remote.stopped import end_when_stopped


class Worker:
    """The actor's class. Calls run one after the other, in the order in which they were sent."""

    def __init__(self):
        self._objects = {}  # by key

    def address(self):
        """(IP address of this machine in the cluster, a free port of it)."""
        import ray

        return ray.util.get_node_ip_address(), find_free_port()

    def begin(self, environment, folder, settings, begin_worker):
        """Makes this process a rank: sets its environment, and what initialize() would, by
        infra.begin_worker. folder: the driver's, to which relative paths belong, where this machine
        has it."""
        os.environ.update(environment)
        go_to(folder, environment["WORKER_NAME"])
        begin_worker(environment["CLUSTER_NAME"], settings)
        end_when_stopped(timeout_seconds())
        return os.getpid()

    def run(self, name, key, packed, is_asked, dropped):
        """Does a call: (its Outcome, the packed result or None). name: for errors; key: of the
        object; packed: (task, Share): the name of its method, or a function or class that makes it;
        is_asked: whether the result is; dropped: keys of objects that nobody has any more."""
        for each in dropped:
            self._objects.pop(each, None)
        if dropped:  # frees cycles here, on all ranks: an engine's end waits for all
            gc.collect()
        task = result = None
        try:
            with _named(f"an argument of {name} cannot be read in the worker"):
                task, share = packed.value(self._find)
            with rows_from(share.first_row, share.cut):
                if isinstance(task, str):
                    value = getattr(self._objects[key], task)(*share.args, **share.kwargs)
                else:
                    value = self._objects[key] = task(*share.args, **share.kwargs)
            if is_asked:
                with _named(f"what {name} returns cannot be sent"):
                    result, _ = pack(value)
        except Exception as error:
            if task == "__next__" and isinstance(error, StopIteration):
                return Outcome(stopped=True), None
            return Outcome(failure=Failure.of(error)), None
        return Outcome(len(value) if isinstance(value, (list, tuple)) else None), result

    def _find(self, refs, kind, *ticket):
        """The object or result behind the ticket of a Handle."""
        if kind == "object":
            return self._objects[ticket[0]]
        value, place = ticket if kind == "given" else _joined(refs, *ticket)
        if place is None:
            return value
        rows = num_rows(value, place[2])
        require(
            rows is None or rows >= place[1],
            f"infra: a result that is passed on has {rows} entries for {place[1]} ranks, each must "
            "get one at least",
        )
        return cut(value, *place)


@contextmanager
def _named(what):
    """In its block: InvalidError that says what, of errors that are not Twinkle's."""
    try:
        yield
    except TwinkleError:
        raise
    except Exception as error:
        raise InvalidError(f"infra: {what}: {error}") from error


def _joined(refs, span, collect, place, group):
    """(the whole of the parts of a group's workers, place). InternalError: one of them is gone, or
    has not made its part."""
    import ray

    parts = refs[slice(*span)]
    try:
        for outcome in ray.get([ended for ended, _ in parts]):
            if outcome.failure is not None:
                why = outcome.failure.text
                raise InternalError(f"infra: group {group} has not made a result: {why}")
        values = [each.value() for each in ray.get([kept for _, kept in parts])]
    except ray.exceptions.RayError as error:
        raise InternalError(
            f"infra: a worker of group {group}, whose result was asked for, {why_gone(error)}"
        ) from None
    return join(collect, values), place


def go_to(folder, worker):
    """To the driver's folder; where this machine has none such, that is logged."""
    if Path(folder).is_dir():
        os.chdir(folder)
        return
    get_logger().warning(
        f"infra: the machine of worker {worker} has no folder {folder}, which is the driver's: "
        f"relative paths are of {Path.cwd()} there: give absolute ones, or make the folder"
    )
