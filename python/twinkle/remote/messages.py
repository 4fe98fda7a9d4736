"""Messages between a driver and the workers of a group, and how values are pickled for them."""

import io
import pickle
import traceback
from dataclasses import dataclass

from twinkle.errors import InternalError, InvalidError, TwinkleError


class Handle:
    """Base of what stands for an object or a result in workers. In the arguments of a remote call
    it arrives as that; nothing else can pickle it."""

    def _ticket(self, group, refs):
        """The arguments of the worker's `find`, which gives what this stands for. group: whose
        workers get it; refs: a list, to which it adds the references that travel along. Raises what
        the call behind it has raised."""
        raise NotImplementedError

    def __reduce__(self):
        """InvalidError: it is pickled for nobody."""
        raise InvalidError(
            "infra: what lives in workers can only be sent to workers, as an argument of a remote "
            "call"
        )


def arrived(*ticket):
    """Stands in a pickled value for a Handle: Packed.value() calls its `find` in place of this.
    InternalError: the value is unpickled otherwise."""
    raise InternalError(f"infra: {ticket} was not unpickled by a worker")


@dataclass
class Packed:
    """A pickled value: the memory of its arrays and references to results lie beside it."""

    data: bytes
    buffers: list
    refs: list

    def value(self, find=arrived):
        """The value. find: called as find(refs, *ticket) for each Handle that was in it."""
        return _Unpickler(self, find).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed, find):
        super().__init__(io.BytesIO(packed.data), buffers=packed.buffers)
        self._refs, self._find = packed.refs, find

    def find_class(self, module, name):
        if (module, name) == (__name__, arrived.__name__):
            return lambda *ticket: self._find(self._refs, *ticket)
        return super().find_class(module, name)


def pack(value, group=None):
    """(Packed, a list with the error of a Handle in it, or of nothing). group: for whose workers;
    None: for the driver, and a Handle cannot be in it. Raises what pickling does."""
    from ray import cloudpickle

    file, packed, errors = io.BytesIO(), Packed(b"", [], []), []
    pickler = cloudpickle.Pickler(file, protocol=5, buffer_callback=packed.buffers.append)
    by_cloudpickle = pickler.reducer_override

    def reduced(each):
        if group is None or not issubclass(type(each), Handle):
            return by_cloudpickle(each)
        try:
            return arrived, each._ticket(group, packed.refs)
        except Exception as error:
            errors[:] = [error]
            return arrived, ()

    pickler.reducer_override = reduced
    pickler.dump(value)
    packed.data = file.getvalue()
    return packed, errors


@dataclass
class Failure:
    """An exception of a worker."""

    pickled: bytes | None  # None: it cannot be
    text: str
    trace: str

    @classmethod
    def of(cls, error, failing=""):
        """The Failure of an exception that has just been caught. failing: what an InvalidError says
        has failed by it, unless it is Twinkle's; '': it stays as it is."""
        from ray import cloudpickle

        if failing and not isinstance(error, TwinkleError):
            named = InvalidError(f"infra: {failing}: {error}")
            named.__cause__ = error
            return cls.of(named)
        trace = "".join(traceback.format_exception(error))
        text = type(error).__name__
        try:
            text += f": {error}"  # by the user's class
            pickled = cloudpickle.dumps(error)
            pickle.loads(pickled)
        except Exception:  # its class may take other arguments than it keeps
            pickled = None
        return cls(pickled, text, trace)

    def exception(self, where):
        """The exception, with `where` it happened in its text."""
        try:
            error = pickle.loads(self.pickled)
        except Exception:  # it cannot be, or the driver lacks its module, or has another version
            error = InternalError(f"infra: {self.text}")
        text, *rest = error.args or ("",)
        if isinstance(error, TwinkleError) or (error.args == (text,) and isinstance(text, str)):
            error.args = (f"{text} ({where})", *rest)
        else:
            error.add_note(where)
        error.add_note(f"In the worker:\n{self.trace}")
        return error


@dataclass
class Outcome:
    """The end of a Call. length: of its result, where that has one. stopped: an iterator has
    ended."""

    length: int | None = None
    stopped: bool = False
    failure: Failure | None = None
