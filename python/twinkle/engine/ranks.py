"""News that the processes of a script tell each other: numbers of metrics, batches, places."""

import atexit
import json
import os
import pickle
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from twinkle.core import core
from twinkle.engine.group import open_groups, timeout_seconds, watch_of
from twinkle.errors import require
from twinkle.logger import get_logger
from twinkle.platform import Platform

_known = {}  # by the processes of a mesh, in the order of their data ranks
_lock = threading.Lock()


class Ranks:
    """This process as the only one."""

    rank, size, watch = 0, 1, None

    def gather(self, what, value):
        """The value of every rank, in their order. what: the call, for errors. Waits for them all.

        InvalidError: ranks have made different calls, or another's value can't be pickled; where
        this one's can't, what pickle says; InternalError: a rank has gone."""
        return self.agree(what, lambda: (None, value))[1]

    def agree(self, what, make):
        """make() on every rank gives (what stays here, what all get to know). The first, and a list
        of what all have told. what: the thing that is made, for errors. Waits for them all.

        Where make() raises on a rank, all raise: that rank the error itself, the others an
        InvalidError that tells it; InvalidError, InternalError: as gather."""
        del what
        own, told = make()
        return own, [told]

    @contextmanager
    def alike(self, what):
        """In its block every rank checks a call, before any does it. Where the block raises on a
        rank, all raise, as agree says. what: the call, for errors. Waits for them all."""
        failed = []
        try:
            yield
        except Exception as error:
            failed.append(error)

        def checked():
            if failed:
                raise failed.pop()  # it holds this frame: a cycle would keep who has called
            return None, None

        self.agree(what, checked)


class _Several(Ranks):
    """The data ranks of a mesh, each a process. They trust each other: what they tell is pickled.
    One thread at a time, which is the same on every rank."""

    def __init__(self, mesh):
        self.rank, self.size = mesh.data_rank, mesh.data_world_size
        name = f"ranks/{'_'.join(map(str, _in_order(mesh)))}"
        self.watch = watch_of(mesh, f"{name}/watch")
        with open_groups(mesh, {f"{name}/told": None}, self.watch) as (told,):
            self._meeting = core().Meeting(told, self.watch)
        self._lock, self._count = threading.Lock(), 0
        atexit.register(tell_end, self.watch, self.rank)
        self._handler = core().SigtermHandler(self.watch)  # torchrun's, when another rank has gone
        _start_warner(self.watch, threading.Event())  # nobody sets it: until the process ends

    def _exchange(self, what, value):
        with self._lock:
            self._count += 1
            place = f"exchange {self._count}, {what}"
            sent = self._meeting.all_gather(pickle.dumps((what, value)), place)
        calls, values = zip(*map(pickle.loads, sent), strict=True)
        for rank, call in enumerate(calls):
            require(
                call == calls[0],
                f"infra: exchange {self._count}: rank 0 has come with {calls[0]}, rank {rank} "
                f"with {call}: all ranks must call the same methods in the same order",
            )
        return list(values)

    def agree(self, what, make):
        own = sent = failed = why = None
        try:
            own, told = make()
            sent = pickle.dumps(told)  # a value that can't be sent is told like other errors
        except Exception as error:
            failed, why = error, _text_of(error)
        try:
            of_ranks = self._exchange(what, (sent, why))
            if failed is not None:
                raise failed
        finally:
            failed = None  # as in alike
        for rank, (_, text) in enumerate(of_ranks):
            require(text is None, f"infra: rank {rank} could not make {what}: {text}")
        return own, [pickle.loads(each) for each, _ in of_ranks]


def ranks_of(mesh):
    """The Ranks of a mesh; of None, of one rank, and where one process drives others: this process
    alone. The first call for a mesh waits until every rank of it has made it. InvalidError,
    NotAvailableError: as engine_group."""
    if mesh is None or mesh.world_size == 1 or Platform.get_world_size() == 1:
        return Ranks()
    key = _in_order(mesh)
    with _lock:
        if key not in _known:
            _known[key] = _Several(mesh)
        return _known[key]


def _in_order(mesh):
    """A mesh's processes in the order of their data ranks: meshes of the same processes may number
    them in other orders."""
    return tuple(sorted(map(int, mesh.mesh.flat), key=mesh.get_data_rank_from_global_rank))


@contextmanager
def waits_at(watch, place):
    """In its block this thread waits for the other ranks of a watch at a place. Who of them is late
    there, while this one waits, is warned of once."""
    ended = threading.Event()
    warner = _start_warner(watch, ended)
    try:
        with core().Waiting(watch, place):
            yield
    finally:
        ended.set()
        warner.join()


def _text_of(error):
    out = type(error).__name__
    with suppress(Exception):  # a user's error has a text of the user's, too
        out += f": {error}"
    return out


def tell_end(watch, rank):
    """The other ranks of a watch hear how this one's script has ended."""
    error = getattr(sys, "last_value", None)
    if error is None:
        watch.end()
    else:
        text = _text_of(error)
        watch.fail("", f"infra: rank {rank} has ended with {text}")
        _tell_torchrun(text)


def _tell_torchrun(text):
    """torchrun's last lines name the error of each rank, as with its @record: from this file."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and not Path(path).exists():
        told = {"message": text, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):
            whole = Path(f"{path}.new")  # torchrun does not outlive half a file
            whole.write_text(json.dumps({"message": told}), encoding="utf-8")
            whole.replace(path)


def _start_warner(watch, ended):
    """A thread that warns until the Event is set; but not of what has been known before."""
    told = watch.late()  # here: it may begin later than what it is to warn of
    warner = threading.Thread(target=_warn_of_late, args=(watch, ended, told), daemon=True)
    warner.start()
    return warner


def _warn_of_late(watch, ended, told):
    """Once for each rank that others have waited for too long, and place, but for `told`."""
    period = min(timeout_seconds() / 4, 1.0)
    is_first = Platform.get_local_rank() == 0  # others' logger tells errors alone
    say = get_logger().warning if is_first else get_logger().error
    while not ended.wait(period):
        before, told = told, watch.late()
        if told not in ("", before):
            say(f"infra: {told}", ranks="all")
