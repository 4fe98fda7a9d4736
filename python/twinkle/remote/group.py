"""WorkerGroup: the workers of a DeviceGroup, as the driver sees them. One call is under way at a
time: the next one waits for it, and raises what it raised where nobody has looked at it."""

import itertools
import math
import sys
import threading
import time
import weakref
from collections import deque
from contextlib import ExitStack, contextmanager
from pathlib import Path

from twinkle import checks
from twinkle.errors import InternalError, InvalidError, require
from twinkle.logger import get_logger
from twinkle.platform import timeout_seconds
from twinkle.remote.gone import ANEW, why_gone
from twinkle.remote.messages import pack

_HERE = str(Path(__file__).parents[1])  # frames of this package are not the user's
_GRACE = 2.0  # seconds in which other workers may say more after one has failed


def call_site():
    """'train.py:12': the nearest line outside of this package that is being executed."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class Pending:
    """A call that was sent to workers. what: 'TransformersModel.step', for errors. refs and kept:
    {rank: reference} of the Outcomes and of the packed results."""

    def __init__(self, group, what):
        self.group, self.what, self.site = group, what, call_site()
        self.refs, self.kept = {}, {}
        self.outcomes = {}  # by rank, as they come
        self.failed_at = math.inf  # when the first failure was known
        self.is_seen = False  # somebody has got the error

    def result(self, timeout=None):
        """{rank: Outcome} once all workers have answered. Raises what one of them raised, with the
        call's place in the driver. InternalError: a worker is gone; TimeoutError: seconds have
        passed; the call goes on."""
        self._wait(timeout)
        self.check()
        return self.outcomes

    def values(self, kept, ranks):
        """The results behind references of these ranks. InvalidError: one cannot be unpickled."""
        self.group.check_whole()
        packed = [self._get(rank, ref) for rank, ref in zip(ranks, kept, strict=True)]
        try:
            return [each.value() for each in packed]
        except Exception as error:
            raise InvalidError(
                f"infra: what {self.what} returns cannot be read in the driver: {error}"
            ) from error

    def finish(self):
        """Waits until no worker is at it. Raises as result, where nobody has seen that yet.
        InternalError: a worker is silent for timeout_seconds() after another has failed."""
        self._wait()
        if not self.is_seen:
            self.check()
        self._wait(late=True)

    def check(self):
        """Raises what the call has raised, where that is known: an exception of its own each time,
        which this does not hold, since it holds the frames that it went through."""
        if self.failed_at < math.inf:
            self.is_seen = True
            raise self._error()

    def check_answers(self):
        """check, with what the workers have answered so far."""
        while self.left() and self._take(0.0):
            pass
        self.check()

    def left(self):
        """{reference: rank} of the workers that have not answered."""
        return {ref: rank for rank, ref in self.refs.items() if rank not in self.outcomes}

    def _wait(self, timeout=None, late=False):
        """Until all have answered, or one has failed and the others say no more. late: also for
        those that are still busy then."""
        end = time.monotonic() + (math.inf if timeout is None else timeout)
        while left := self.left():
            now = time.monotonic()
            enough = self.failed_at + (timeout_seconds() if late else _GRACE)
            if now >= enough and not late:
                return
            if now >= enough:
                why = f"has not answered for {timeout_seconds():g} s after another rank has failed "
                why += f"in {self.what} at {self.site}: {self._error()}; {ANEW}"
                raise self.group.end_with(min(left.values()), why, self)
            if now >= end:
                raise TimeoutError(
                    f"infra: {self.what} of group {self.group.name} has not ended in {timeout} s "
                    f"(at {self.site}); it goes on"
                )
            self._take(min(end, enough) - now)

    def _take(self, seconds):
        """Notes an answer that comes within so many seconds. False: none has."""
        import ray

        left, limit = self.left(), None if seconds == math.inf else seconds
        ready, _ = ray.wait(list(left), num_returns=1, timeout=limit)
        for ref in ready:
            self.outcomes[left[ref]] = outcome = self._get(left[ref], ref)
            if outcome.failure is not None:
                self.failed_at = min(self.failed_at, time.monotonic())
        return bool(ready)

    def _get(self, rank, ref):
        import ray

        try:
            return ray.get(ref)
        except ray.exceptions.RayError as error:
            raise self.group.end_with(rank, why_gone(error), self) from None

    def _error(self):
        """The failure that says most, with those of other ranks as notes."""
        failed = {rank: o.failure for rank, o in sorted(self.outcomes.items()) if o.failure}
        where = f"of group {self.group.name}, in the call of {self.what} at {self.site}"
        errors = [each.exception(f"rank {rank} {where}") for rank, each in failed.items()]
        error, *others = sorted(errors, key=_says_less)
        for other in others:
            if str(other).partition(" (rank ")[0] != str(error).partition(" (rank ")[0]:
                error.add_note(f"Another rank: {type(other).__name__}: {other}")
        return error


class WorkerGroup:
    """Sends calls to workers, one after the other. lock: held while one is sent."""

    def __init__(self, name, actors):
        self.name, self.size = name, len(actors)
        self.ended = False  # by another initialize(), or the end of the driver
        self.lock = threading.RLock()
        self._actors = actors
        self._broken = None  # why, once a worker is gone
        self._keys = itertools.count(1)
        self._dropped = deque()  # keys whose owners are gone
        self._last = None  # the Pending that was sent last, unless it is known to be finished

    def new_key(self, owner):
        """A key for an object in the workers, which they forget with the next call to all of them
        once `owner` is gone."""
        key = next(self._keys)
        weakref.finalize(owner, self._dropped.append, key).atexit = False
        return key

    def check_run(self, what):
        """InvalidError: `what` belongs to a run that has ended."""
        require(
            not self.ended,
            f"infra: {what} belongs to group {self.name} of a run that has ended: initialize() was "
            "called again; make the object anew",
        )

    def check_whole(self):
        """InternalError: a worker is gone."""
        if self._broken is not None:
            raise InternalError(self._broken)

    def finish(self):
        """Waits for the call under way. Raises as Pending.finish."""
        with self.lock:
            self.check_whole()
            if self._last is not None:
                self._last.finish()
                self._last = None

    def send(self, what, key, task, shares, asked=()):
        """Sends a task, as Worker.run takes it, with a Share for each rank, or for the first ones,
        and returns the Pending at once. asked: ranks whose results are. Raises first as finish.
        InternalError: a worker is gone; InvalidError: an argument cannot be pickled, and nobody has
        been sent anything, or the run has ended."""
        from ray.exceptions import RayActorError

        with self.lock:
            self.check_run(what)
            self.finish()
            packed = [self._packed(what, task, share) for share in shares]
            # All workers forget a key in one call, since ranks end an engine together.
            count = len(self._dropped) if len(shares) == self.size else 0
            dropped = [self._dropped.popleft() for _ in range(count)]
            self._last = pending = Pending(self, what)
            try:
                for rank, each in enumerate(packed):
                    run = self._actors[rank].run.options(num_returns=2)
                    refs = run.remote(what, key, each, rank in asked, dropped)
                    pending.refs[rank], pending.kept[rank] = refs
            except RayActorError as error:
                raise self.end_with(rank, why_gone(error), pending) from None
            except KeyboardInterrupt:  # others may have the call, and would wait for this one
                if (sent := len(pending.refs)) < len(packed):
                    why = f"may not have got {what}, which was interrupted; {ANEW}"
                    self.end_with(sent, why, pending)
                raise
            return pending

    def _packed(self, what, task, share):
        try:
            packed, errors = pack((task, share), self)
        except Exception as error:
            named = {f"argument {i + 1}": value for i, value in enumerate(share.args)}
            for name, value in (named | share.kwargs).items():
                try:
                    pack(value, self)
                except Exception as cause:
                    raise InvalidError(
                        f"infra: {name} of {what} cannot be sent to group {self.name}, it is "
                        f"{checks.short(value)}: {cause}: pass a function that makes it there"
                    ) from cause
            text = f"infra: {what} cannot be sent to group {self.name}: {error}"
            raise InvalidError(text) from error
        if errors:
            raise errors.pop()  # nothing may hold its frames and what is in them
        return packed

    def end_with(self, rank, why, pending):
        """The group is of no use any more: ends its workers. Returns the InternalError. pending:
        the call in which that was found."""
        if self._broken is None:
            found = f"found in the call of {pending.what} at {pending.site}"
            self._broken = f"infra: rank {rank} of group {self.name} {why} ({found})"
            self._kill()
        return InternalError(self._broken)

    def end_alone(self):
        """Ends the group where its call waits for one that nobody will send to another group."""
        pending = self._last
        if pending is not None and pending.left():
            why = f"waits in {pending.what} for another group, which was not called; {ANEW}"
            self.end_with(min(pending.refs), why, pending)

    def end(self):
        """Ends the workers. An error that nobody has seen is logged."""
        self.ended = True
        try:
            if self._last is not None and self._broken is None and not self._last.is_seen:
                self._last.check_answers()
        except Exception as error:
            get_logger().error(f"infra: a call that nobody waited for has failed: {error}")
        self._kill()

    def _kill(self):
        import ray

        for actor in self._actors:
            ray.kill(actor, no_restart=True)


@contextmanager
def locked(*groups):
    """In its block no other thread sends the groups a call."""
    with ExitStack() as stack:
        for group in sorted(set(groups), key=lambda group: group.name):  # all threads alike
            stack.enter_context(group.lock)
        yield


def together(groups, *calls):
    """The results of functions, each of which sends one of the groups, which are locked, a call
    that waits for the others' and returns it. Raises before that as WorkerGroup.finish, and after
    all have ended the error that says most. A group that is left alone by an interrupt ends."""
    for group in groups:
        group.finish()
    try:
        sent = [call() for call in calls]
    except BaseException:
        if all(group._broken is None for group in groups):
            for group in groups:
                group.end_alone()
        raise
    out, errors = [], []
    for result in sent:
        try:
            out.append(result())
        except Exception as error:
            errors.append(error)
    try:
        if errors:
            raise min(errors, key=_says_less)
        return out
    finally:
        errors.clear()  # their tracebacks have this frame, and so what the script has dropped


def _says_less(error):
    """Orders errors: a rank's own says more than that it was left alone, or was told another's."""
    text = str(error)
    return isinstance(error, InternalError), text.startswith(("infra: rank ", "sync: rank "))
