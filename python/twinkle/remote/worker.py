"""A worker: the process of one rank of a DeviceGroup. It holds the rank's part of every object
that was made with remote_group=, and is to that object what a process of torchrun is."""

import gc
import os
from pathlib import Path

from twinkle.errors import InternalError
from twinkle.logger import get_logger
from twinkle.platform import find_free_port
from twinkle.remote.collect import join
from twinkle.remote.gone import why_gone
from twinkle.remote.lazy import cut
from twinkle.remote.messages import Failure, Outcome, pack
from twinkle.remote.rows import rows_from


class Worker:
    """The actor's class. Calls run one after the other, in the order in which they were sent."""

    def __init__(self):
        self._objects = {}  # by key

    def run(self, name, key, packed, is_asked, dropped):
        """Does a call: (its Outcome, the packed result or None). name: for errors; key: of the
        object; packed: (task, Share): the name of its method, or a function or class that makes it;
        is_asked: whether the result is; dropped: keys of objects that nobody has any more."""
        for each in dropped:
            self._objects.pop(each, None)
        if dropped:  # frees cycles here, on all ranks: an engine's end waits for all
            gc.collect()
        task = result = None
        failing = f"an argument of {name} cannot be read in the worker"
        try:
            task, share = packed.value(self._find)
            failing = ""
            with rows_from(share.first_row, share.cut):
                if isinstance(task, str):
                    value = getattr(self._objects[key], task)(*share.args, **share.kwargs)
                else:
                    value = self._objects[key] = task(*share.args, **share.kwargs)
            failing = f"what {name} returns cannot be sent"
            if is_asked:
                result, _ = pack(value)
        except Exception as error:
            if task == "__next__" and isinstance(error, StopIteration):
                return Outcome(stopped=True), None
            return Outcome(failure=Failure.of(error, failing)), None
        return Outcome(len(value) if isinstance(value, (list, tuple)) else None), result

    def _find(self, refs, kind, *ticket):
        """The object or result behind the ticket of a Handle."""
        if kind == "object":
            return self._objects[ticket[0]]
        return ticket[0] if kind == "given" else _joined(refs, *ticket)


def _joined(refs, span, collect, place, group):
    """The whole of the parts of a group's workers, or the piece at a place. InternalError: one of
    them is gone, or has not made its part."""
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
    whole = join(collect, values)
    return whole if place is None else cut(whole, *place)


def address():
    """(IP address of this machine in the cluster, a free port of it)."""
    import ray

    return ray.util.get_node_ip_address(), find_free_port()


def go_to(folder, worker):
    """To the driver's folder; where this machine has none such, that is logged."""
    if Path(folder).is_dir():
        os.chdir(folder)
        return
    get_logger().warning(
        f"infra: the machine of worker {worker} has no folder {folder}, which is the driver's: "
        f"relative paths are of {Path.cwd()} there: give absolute ones, or make the folder"
    )
