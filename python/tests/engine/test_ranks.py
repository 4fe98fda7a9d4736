"""Nothing is left of a call that ranks refuse, and of engines that their scripts have dropped."""

import gc
import json
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from twinkle.engine import engine
from twinkle.engine.ranks import Ranks, _Several
from twinkle.errors import InternalError, InvalidError
from twinkle.remote.group import Pending
from twinkle.remote.messages import Failure, Outcome


class _Two(_Several):
    """The first of two ranks. The second says what this one does, or `why` it refuses."""

    def __init__(self, why=None):
        self.rank, self.size, self._why = 0, 2, why

    def _exchange(self, what, value):
        told, why = value
        return [value, (told, why or self._why)]


class Caller:
    """Who calls: a cycle from an error to its frames would keep it."""

    def __init__(self, ranks, fails):
        self._ranks, self._fails = ranks, fails

    def check(self):
        if self._fails:
            raise InvalidError("engine: seed is -1")
        return None, None

    def alike(self):
        with self._ranks.alike("its call"):
            self.check()

    def agree(self):
        self._ranks.agree("its call", self.check)


def expect_gone(left):
    """An object that left() refers to weakly ends with it, not with a collection of cycles."""
    gc.disable()
    try:
        assert left()() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["alike", "agree"])
@pytest.mark.parametrize(
    ("ranks", "fails", "text"),
    [
        (Ranks(), True, "^engine: seed is -1$"),
        (_Two(), True, "^engine: seed is -1$"),
        (_Two("ValueError: no"), False, "^infra: rank 1 could not make its call: ValueError: no$"),
    ],
    ids=["alone", "own", "another's"],
)
def test_a_refused_call_keeps_nobody(ranks, fails, text, method):
    def left():
        caller = Caller(ranks, fails)
        with pytest.raises(InvalidError, match=text):
            getattr(caller, method)()
        return weakref.ref(caller)

    expect_gone(left)


class _UntoldError(Exception):
    def __str__(self):
        raise ValueError("no text")


def test_what_cannot_be_sent_or_said_is_told_before_it_is_raised():
    """Else this rank alone would go on, and the other wait for it."""
    told = []

    class Seen(_Two):
        def _exchange(self, what, value):
            told.append(value)
            return super()._exchange(what, value)

    def fails():
        raise _UntoldError

    with pytest.raises(Exception, match="pickle"):
        Seen().gather("numbers", lambda: None)
    with pytest.raises(_UntoldError):
        Seen().agree("numbers", fails)
    assert [sent for sent, _ in told] == [None, None]
    assert "pickle" in told[0][1]
    assert told[1][1] == "_UntoldError"
    assert Seen().gather("numbers", [1, 2]) == [[1, 2], [1, 2]]


def _failed(error):
    """A remote call whose only worker has failed."""
    pending = Pending(SimpleNamespace(name="g"), "f")
    pending.outcomes = {0: Outcome(failure=Failure.of(error))}
    pending.failed_at = 1.0
    return pending


def test_an_error_that_a_remote_call_raises_keeps_nobody_who_has_caught_it():
    pytest.importorskip("ray")
    pending = _failed(InvalidError("no"))
    seen = []

    def left():
        caller = Caller(None, False)
        for _ in range(2):
            try:
                pending.check()
            except InvalidError as error:
                seen.append((str(error), error.__notes__))
        return weakref.ref(caller)

    expect_gone(left)
    assert seen[0] == seen[1] and seen[0][0].startswith("no (rank 0 of group g, in the call of f ")


def test_a_worker_tells_an_error_whose_text_cannot_be_made():
    """Else the worker counts a failure of which the driver does not hear."""
    pytest.importorskip("ray")
    failure = Failure.of(_UntoldError())
    assert (failure.pickled, failure.text) == (None, "_UntoldError")
    assert str(failure.exception("rank 1")) == "infra: _UntoldError (rank 1)"


class _StatusError(Exception):
    def __init__(self, code):
        super().__init__(f"status {int(code)}")


def test_an_error_of_a_worker_is_what_was_raised_there():
    """Also of classes that are not made of what they keep: twice the same, which nobody shares."""
    pytest.importorskip("ray")
    with pytest.raises(json.JSONDecodeError) as raised:
        json.loads("[")
    for error in (raised.value, InvalidError("no"), KeyError("x")):
        pending, told = _failed(error), []
        for _ in range(2):
            with pytest.raises(type(error)) as raised:
                pending.check()
            told.append(raised.value)
        assert told[0] is not told[1] and told[0].args == told[1].args
        assert told[0].args[0].startswith(f"{error.args[0]} (rank 0 of group g")
    with pytest.raises(InternalError, match="infra: _StatusError: status 3"):
        _failed(_StatusError(3)).check()


@pytest.mark.parametrize("order", [range(6), range(5, -1, -1), (3, 0, 5, 1, 4, 2)])
def test_engines_that_cycles_keep_end_in_the_order_in_which_they_were_made(order, monkeypatch):
    """In which Python collects garbage depends on what else there is: on each rank on another."""
    of_ranks, ended = weakref.WeakValueDictionary(), []
    monkeypatch.setattr(engine, "_several", of_ranks)

    def drop():
        """Engines 6 and 7 are still held."""
        made = [np.zeros(1) for _ in range(8)]  # as an engine, unknown to the collector
        for number, each in enumerate(made):
            of_ranks[number] = each
            weakref.finalize(each, ended.append, number)
        for number in order:
            owner = SimpleNamespace(engine=made[number])
            owner.itself = owner
        return made[6:]

    gc.disable()
    try:
        held = drop()
        assert ended == []
        engine.end_dropped()
        assert ended == list(range(6)) and list(of_ranks) == [6, 7] and len(held) == 2
    finally:
        gc.enable()
