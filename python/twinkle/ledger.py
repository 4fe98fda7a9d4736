"""Ledger: what Python counts of the engine's operations, whatever ends the wait for them."""

from functools import partial
from itertools import starmap
from threading import RLock, get_ident


class Ledger:
    """Attributes that change when an operation has ended well: all of them at once, or none.

    An exception may leave a wait at any point: Ctrl-C, another signal's handler. The operation is
    then taken back, or, where that is too late, waited for and counted, before the exception goes
    on. A second Ctrl-C ends that wait, too; settle(), with which the next use has to begin, does
    the rest. Threads run their operations one after another, so that they are counted in the order
    in which they were submitted; a handler may run one meanwhile in its own thread.
    """

    _call = None  # the latest _Call that is not counted yet

    def __init__(self, **attributes):
        self.__dict__.update(attributes)
        self._running = RLock()

    def run(self, operation, changes, /, **arguments):
        """Submits an operation, a method of the compiled engine, and returns its result.
        changes(result): the attributes that it changes, computed of this object's others."""
        with self._running:
            self.settle()  # left by a thread before this one
            call = self._call = _Call(changes, self._call)
            try:
                return call.run(operation, arguments)
            finally:
                call.left = True  # no signal is looked at between the wait and this line
                self.settle()

    def settle(self):
        """Counts the operation whose wait was left; also the one that waits now, if this is a
        signal's handler that runs meanwhile, after its end."""
        call = self._call
        if call is None or not call.can_settle():
            return
        with self._running:
            call = self._call
            if call is None or not call.can_settle():
                return  # another thread has counted it meanwhile
            changes = call.changes_of_outcome()
            if self._call is call:  # a handler may have counted it meanwhile
                # One call into C, in which no handler and no other thread runs.
                self.__dict__.update({"_call": call.outer, **changes})


class _Call:
    def __init__(self, changes, outer):
        self.changes, self.thread, self.left = changes, get_ident(), False
        self.outer = outer  # one that is not submitted yet, if a handler runs this one meanwhile
        self._futures = []

    def run(self, operation, arguments):
        # The future is kept by C code alone: a signal that comes meanwhile is handled after it.
        self._futures.extend(starmap(partial(operation, **arguments), [()]))
        return self._futures[0].result()

    def can_settle(self):
        """No: another thread waits for it, or this one is about to submit it."""
        return self.left or (self.thread == get_ident() and bool(self._futures))

    def changes_of_outcome(self):
        """Applies `changes`, or nothing if the operation never happened."""
        if not self._futures or (self.left and self._futures[0].cancel()):
            return {}
        try:
            result = self._futures[0].result()
        except Exception:  # the wait has raised them, or will
            return {}
        return self.changes(result)
