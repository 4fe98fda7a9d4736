"""WorkerGroup: the workers of a DeviceGroup, as the driver sees them."""

import copy
import itertools
import sys
import time
import weakref
from collections import deque
from contextlib import contextmanager
from pathlib import Path

from twinkle import checks
from twinkle.errors import InternalError, InvalidError, TwinkleError, require
from twinkle.logger import get_logger
from twinkle.platform import timeout_seconds
from twinkle.remote.gone import ANEW, not_arrived, why_gone
from twinkle.remote.lazy import EarlierCallError, going_to
from twinkle.remote.messages import REFER, SEND, Call, Failure, Outcome

_HERE = str(Path(__file__).parents[1])  # frames of this package are not the user's
_GRACE = 2.0  # seconds in which other workers may say more after one has failed
_MOST_UNSEEN = 64  # calls that have been sent and not looked at
_MOST_TRIES = 5  # to find two groups without a call, while other threads send some


def call_site():
    """'train.py:12': the nearest line outside of this package that is being executed."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class Pending:
    """A call that was sent to workers. what: 'TransformersModel.step', for errors. told_by_other:
    what it raises is told by the call that waits for its answers."""

    def __init__(self, group, refs, what, site, told_by_other=False):
        self.group, self.refs, self.what, self.site = group, refs, what, site
        self.told_by_other = told_by_other
        self.outcomes = {}  # by worker, as they come
        self.failed_at = None  # when the first worker said that it has not done the call
        self.counted = set()  # workers whose failure, if any, the group has counted
        self.error = None  # what the call raised, once that is known

    def check(self):
        """Raises what the call has raised, where that is known: a copy, since an error holds the
        frames that it went through, and those would hold the call and so the error."""
        if self.error is not None:
            raise _copied(self.error)

    def left(self):
        """{reference: rank} of the workers that have not answered."""
        return {ref: rank for rank, ref in self.refs.items() if rank not in self.outcomes}

    def note(self, rank, outcome):
        """Notes what a worker has answered."""
        self.outcomes[rank] = outcome
        if self.failed_at is None and (outcome.failure is not None or outcome.skipped):
            self.failed_at = time.monotonic()

    def ordered_refs(self):
        """The references in the order of ranks."""
        return [self.refs[rank] for rank in sorted(self.refs)]

    def where(self, rank):
        """Where a worker's error happened, as a text."""
        called = f" of {self.what}" if self.what else ""
        return f"rank {rank} of group {self.group.name}, in the call{called} at {self.site}"


class WorkerGroup:
    """Sends calls to workers and waits for what they say. lock: of the whole run, since a call of
    one group may need results of another's."""

    def __init__(self, name, actors, lock, device_group):
        self.name, self.size = name, len(actors)
        self.device_group = device_group
        self.ended = False  # by another initialize(), or the end of the driver
        self._actors, self._lock = actors, lock
        self._broken = None  # why, once a worker is gone
        self._keys = itertools.count(1)
        self._gone = deque()  # (key, ranks) whose owners are gone
        self._failures = [0] * self.size
        self._unseen = deque()  # Pendings whose outcomes nobody has looked at
        self._late = []  # Pendings that were looked at before all workers had answered

    # ---- keys

    def new_key(self):
        """A key under which the workers may hold something."""
        return next(self._keys)

    def forget_with(self, owner, key, ranks):
        """The workers forget a key, with the next call, once `owner` is gone."""
        weakref.finalize(owner, self._gone.append, (key, ranks)).atexit = False

    def check_run(self, what, other):
        """InvalidError: `what` belongs to a run that has ended, or is sent to nobody (other is
        None)."""
        require(
            not self.ended,
            f"infra: {what} belongs to group {self.name} of a run that has ended: initialize() was "
            "called again; make the object anew",
        )
        require(
            other is not None,
            f"infra: what lives in the workers of group {self.name} can only be sent to workers, "
            "as an argument of a remote call",
        )

    # ---- sending

    def send(self, calls, what, pending=None):
        """Sends {rank: Call} and returns their Pending at once. Raises first what earlier calls
        have raised unseen. InternalError: a worker is gone; InvalidError: an argument cannot be
        sent, and nobody has been sent anything, or the run has ended."""
        with self._lock:
            self.check_run(what, self)
            self._check_whole()
            self._see_failures()
            self._count_late()
            pending = pending or Pending(self, {}, what, call_site())
            shipped = self._shipped(calls, pending)
            self._unseen.append(pending)  # before: an interrupt leaves no call that nobody knows
            try:
                for rank, ref in shipped.items():
                    pending.refs[rank] = self._sent(rank, ref, pending)
            finally:
                if not pending.refs:
                    self._unseen.remove(pending)
            return pending

    def _shipped(self, calls, pending):
        """{rank: reference to its Call}: all are pickled before a worker begins, which would wait
        for the others."""
        # Its workers forget a key in one call, since ranks end an engine together. An owner may go
        # while this runs: what it had is of the next call.
        told, later = [], []
        for key, ranks in _taken(self._gone):
            (told if calls.keys() >= set(ranks) else later).append((key, ranks))
        self._gone.extend(later)
        try:
            for rank, call in calls.items():
                call.forget = tuple(key for key, ranks in told if rank in ranks)
                call.failures = self._failures[rank]
            return {rank: self._put(call, pending) for rank, call in calls.items()}
        except BaseException:
            self._gone.extend(told)
            raise

    def _put(self, call, pending):
        import ray

        try:
            with going_to(self):
                return ray.put(call)
        except TwinkleError:
            raise
        except EarlierCallError as failure:
            raise failure.error from None
        except Exception as error:
            raise self._refusal(call, pending, error) from error

    def _sent(self, rank, ref, pending):
        from ray.exceptions import RayActorError

        try:
            return self._actors[rank].run.remote(ref)
        except RayActorError as error:
            raise self._break(rank, why_gone(error), pending) from None
        except KeyboardInterrupt:  # others have the call, and would wait for this one
            why = f"may not have got {pending.what}, which was interrupted; {ANEW}"
            self._break(rank, why, pending)
            raise

    def _refusal(self, call, pending, error):
        """InvalidError that names the argument which cannot be pickled."""
        from ray import cloudpickle

        named = {f"argument {i + 1}": value for i, value in enumerate(call.args)} | call.kwargs
        for name, value in named.items():
            try:
                with going_to(self):
                    cloudpickle.dumps(value)
            except Exception as cause:
                return InvalidError(
                    f"infra: {name} of {pending.what} cannot be sent to group {self.name}, it is "
                    f"{checks.short(value)}: {cause}: pass a function that makes it there"
                )
        return InvalidError(f"infra: {pending.what} cannot be sent to group {self.name}: {error}")

    def fetch(self, key, ranks, of, answer=SEND):
        """Asks workers for what they hold under a key since the call `of`, or, with answer=REFER,
        for references, which other workers look at; a Pending."""
        pending = Pending(self, {}, of.what, of.site, told_by_other=answer == REFER)
        calls = {rank: Call("fetch", key, answer=answer) for rank in ranks}
        return self.send(calls, of.what, pending)

    # ---- waiting

    def settle(self):
        """Waits until the workers have done what they were sent. Raises the first error that nobody
        has seen, with those of calls behind it as notes; InternalError: as outcomes."""
        self.check_run("an object", self)
        self._check_whole()
        first, notes = None, {}
        for pending in list(self._unseen):
            try:
                self.outcomes(pending)
            except Exception as error:
                if first is None:
                    first = error
                else:
                    notes[f"A call behind it: {type(error).__name__}: {error}"] = None
        try:
            if first is not None:
                for note in notes:
                    first.add_note(note)
                raise first
        finally:
            del first  # whose traceback has this frame
        for pending in list(self._late):
            self._wait_for_late(pending)

    def is_settled(self):
        """Whether nothing is left that settle would wait for."""
        self._count_late()
        return not self._unseen and not self._late

    def _wait_for_late(self, pending):
        import ray

        while left := pending.left():
            seconds = pending.failed_at + timeout_seconds() - time.monotonic()
            ready, _ = ray.wait(list(left), num_returns=1, timeout=max(0.0, seconds))
            for ref in ready:
                self._take(pending, left[ref], ref)
            if not ready:
                self._break_silent(next(iter(left.values())), pending)
        with self._lock:
            self._count_late()

    def outcomes(self, pending, timeout=None):
        """{rank: Outcome} of a call once all workers have answered. Raises what one of them raised,
        in this call or in one before it that nobody has looked at, with the call's place in the
        driver. InternalError: a worker is gone, or silent for timeout_seconds() after another has
        failed; TimeoutError: seconds have passed; the call goes on."""
        pending.check()
        self._wait(pending, timeout)
        with self._lock:
            self._see(pending)
        pending.check()
        return pending.outcomes

    def _wait(self, pending, timeout):
        import ray

        end = None if timeout is None else time.monotonic() + timeout
        while left := pending.left():
            failed_at, silent = pending.failed_at, self._silent_in(left.values())
            ends = [end, failed_at and failed_at + _GRACE, silent and silent[0]]
            ends = [each for each in ends if each is not None]
            seconds = max(0.0, min(ends) - time.monotonic()) if ends else None
            ready, _ = ray.wait(list(left), num_returns=1, timeout=seconds)
            for ref in ready:
                self._take(pending, left[ref], ref)
            if ready:
                continue
            now = time.monotonic()
            if failed_at is not None and now >= failed_at + _GRACE:
                return
            if silent is not None and now >= silent[0]:
                self._break_silent(*silent[1:])
            if end is not None and now >= end:
                raise TimeoutError(
                    f"infra: {pending.what} of group {self.name} has not ended in {timeout} s (at "
                    f"{pending.site}); it goes on"
                )

    def _take(self, pending, rank, ref):
        import ray
        from ray.exceptions import RayError

        try:
            outcome = ray.get(ref)
        except RayError as error:
            cause = not_arrived(error)
            if cause is None:
                with self._lock:
                    raise self._break(rank, why_gone(error), pending) from None
            if not isinstance(cause, TwinkleError):
                told = f"infra: what {pending.what} takes or returns cannot be sent: {cause}"
                cause = InvalidError(told)
            outcome = Outcome(failure=Failure.of(cause), counted=False)
        pending.note(rank, outcome)

    def _take_ready(self, pending):
        """Takes the answers that have come."""
        import ray

        if left := pending.left():
            for ref in ray.wait(list(left), num_returns=len(left), timeout=0)[0]:
                self._take(pending, left[ref], ref)

    def _has_told(self, pending):
        """Whether all workers have answered, or one with what it raised: another may wait for it
        for ever."""
        self._take_ready(pending)
        return not pending.left() or any(o.failure for o in list(pending.outcomes.values()))

    def _see(self, pending):
        """Notes what a call has raised, and that it has been seen."""
        if pending not in self._unseen:
            return
        before = None if pending.failed_at is None else self._error_before(pending)
        self._unseen.remove(pending)
        if pending.left():
            self._late.append(pending)
        self._count(pending)
        failed = {rank: o.failure for rank, o in pending.outcomes.items() if o.failure is not None}
        errors = [f.exception(pending.where(rank)) for rank, f in sorted(failed.items())]
        errors.sort(key=_says_less)
        if before is not None:
            pending.error = before
        elif pending.told_by_other:
            return
        elif errors:
            pending.error = errors[0]
            for other in errors[1:]:
                if str(other).partition(" (rank ")[0] != str(errors[0]).partition(" (rank ")[0]:
                    pending.error.add_note(f"Another rank: {type(other).__name__}: {other}")
        elif any(outcome.skipped for outcome in pending.outcomes.values()):
            pending.error = InternalError(
                f"infra: {pending.what} at {pending.site} was not done: a call before it failed"
            )

    def _error_before(self, pending):
        """What a call that was sent before this one has raised unseen; None: nothing."""
        for earlier in itertools.takewhile(lambda each: each is not pending, list(self._unseen)):
            if self._has_told(earlier):
                self._see(earlier)
                if earlier.error is not None:
                    return earlier.error
        return None

    def _see_failures(self):
        """Raises the first error of calls that nobody has waited for."""
        while self._unseen:
            pending = self._unseen[0]
            if len(self._unseen) < _MOST_UNSEEN and not self._has_told(pending):
                return
            self.outcomes(pending)

    def _count(self, pending):
        """Counts what its workers have raised: they do nothing until that is known here."""
        for rank, outcome in list(pending.outcomes.items()):
            if rank not in pending.counted:
                pending.counted.add(rank)
                self._failures[rank] += outcome.failure is not None and outcome.counted

    # ---- workers that answer after another has failed

    def _count_late(self):
        for pending in list(self._late):
            self._take_ready(pending)
            self._count(pending)
            if not pending.left():
                self._late.remove(pending)

    def _silent_in(self, ranks):
        """(when the first of them has been silent for too long, its rank, the Pending that it has
        not answered); None: none of them is late."""
        late = [
            (pending.failed_at, rank, pending)
            for pending in list(self._late)
            for rank in pending.left().values()
            if rank in ranks
        ]
        if not late:
            return None
        failed_at, rank, pending = min(late, key=lambda each: each[0])
        return failed_at + timeout_seconds(), rank, pending

    def _break_silent(self, rank, late):
        with self._lock:
            self._count_late()
            if rank in late.left().values():
                raise self._break(
                    rank,
                    f"has not answered for {timeout_seconds():g} s after another rank has failed "
                    f"in {late.what} at {late.site}: {late.error}; {ANEW}",
                    late,
                )

    # ---- the end

    def _end_alone(self):
        """Ends the group, whose last call waits for one that nobody will send."""
        pending = self._unseen[-1]
        why = f"waits in {pending.what} for another group, which was not called; {ANEW}"
        self._break(min(pending.refs), why, pending)

    def _check_whole(self):
        if self._broken is not None:
            raise InternalError(self._broken)

    def _break(self, rank, why, pending):
        """The group is of no use any more: ends its workers. Returns the InternalError. pending: of
        the call in which that was found."""
        import ray

        if self._broken is None:
            found = f"found in the call of {pending.what} at {pending.site}"
            self._broken = f"infra: rank {rank} of group {self.name} {why} ({found})"
            for actor in self._actors:
                ray.kill(actor, no_restart=True)
        return InternalError(self._broken)

    def end(self):
        """Ends the workers. Errors that nobody has seen are logged."""
        import ray

        self.ended = True
        for pending in list(self._unseen):
            try:
                if self._broken is None and self._has_told(pending):
                    self.outcomes(pending)
            except Exception as error:
                get_logger().error(f"infra: a call that nobody waited for has failed: {error}")
        for actor in self._actors:
            ray.kill(actor, no_restart=True)


@contextmanager
def settled(*groups):
    """In its block calls may be sent that wait for each other: no worker of the groups skips one
    for a call before it, since all those have ended, and no other thread sends one. What is left
    alone where the block is interrupted would wait for ever, and ends. groups: of one run. Raises
    before the block as settle."""
    lock = groups[0]._lock  # of the run
    for _ in range(_MOST_TRIES):
        for group in groups:
            group.settle()  # other threads may go on, and send more
        lock.acquire()
        if all(group.is_settled() for group in groups):
            break
        lock.release()
    else:
        lock.acquire()
    try:
        for group in groups:  # of a thread that always sends more the last is waited for here
            group.settle()
        try:
            yield
        except BaseException:
            sent = [group for group in groups if group._unseen]
            if len(sent) < len(groups) and not any(group._broken for group in groups):
                for group in sent:
                    group._end_alone()
            raise
    finally:
        lock.release()


def _copied(error):
    """An equal one that nobody has raised; itself, where its class makes none."""
    try:
        out = copy.copy(error)
        out.args = error.args  # not all classes are made of what they keep
        vars(out).update(vars(error))
    except Exception:
        return error.with_traceback(None)
    return out


def _says_less(error):
    """Orders errors: a rank's own says more than that it was left alone, or was told another's."""
    return isinstance(error, InternalError), str(error).startswith("infra: rank ")


def _taken(queue):
    while queue:
        yield queue.popleft()
