"""What a driver and the workers of a group say to each other."""

import pickle
import traceback
from dataclasses import dataclass, field

from twinkle.errors import InternalError, TwinkleError

# What a worker does with a result; REFER: it sends a reference, by which others fetch it.
SEND, REFER, KEEP, DROP = "send", "refer", "keep", "drop"


@dataclass
class Call:
    """What a worker is to do. kind: 'make', 'call', 'iterate', 'next' or 'fetch'. key: of the
    object, under which it is or will be held. what: the class of 'make', the method of 'call'.
    answer: SEND, REFER, KEEP under keep_as, or DROP. first_row: place of the worker's rows in the
    whole; None: nobody has cut it. cut: as cut_arguments gives it.
    forget: keys that nobody has any more. failures: how many of this worker's errors the driver has
    seen: a worker that has had more does nothing until they are equal."""

    kind: str
    key: int
    what: object = None
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    answer: str = SEND
    keep_as: int = 0
    first_row: int | None = None
    cut: dict | None = None
    forget: tuple = ()
    failures: int = 0


@dataclass
class Failure:
    """An exception of a worker."""

    pickled: bytes | None  # None: it cannot be
    text: str
    trace: str

    @classmethod
    def of(cls, error):
        """Of an exception that has just been caught."""
        from ray import cloudpickle

        trace = "".join(traceback.format_exception(error))
        text = type(error).__name__
        try:
            text += f": {error}"  # which is the user's
            pickled = cloudpickle.dumps(error)
            pickle.loads(pickled)
        except Exception:  # its class may take other arguments than it keeps
            pickled = None
        return cls(pickled, text, trace)

    def exception(self, where):
        """The exception, with `where` it happened in its text."""
        error = self._unpickled() or InternalError(f"infra: {self.text}")
        if isinstance(error, TwinkleError) or (
            len(error.args) == 1 and isinstance(error.args[0], str)
        ):
            error.args = (f"{error.args[0] if error.args else ''} ({where})", *error.args[1:])
        else:
            error.add_note(where)
        error.add_note(f"In the worker:\n{self.trace}")
        return error

    def _unpickled(self):
        """None: it cannot be, here or at all."""
        try:
            return None if self.pickled is None else pickle.loads(self.pickled)
        except Exception:  # the driver lacks its module, or has another version
            return None


@dataclass
class Outcome:
    """What came of a Call. length: of a kept value, where it has one. stopped: an iterator has
    ended. skipped: it was not done, since an earlier call had failed. counted: whether the worker
    counts its failure, and does nothing until the driver has seen it."""

    value: object = None
    length: int | None = None
    stopped: bool = False
    skipped: bool = False
    failure: Failure | None = None
    counted: bool = True

    def check(self, group):
        """InternalError: the call to the group was not done, or has failed."""
        if self.failure is not None:
            raise InternalError(f"infra: group {group} has not made a result: {self.failure.text}")
        if self.skipped:
            raise InternalError(
                f"infra: group {group} has not made a result: an earlier call of it has failed"
            )
