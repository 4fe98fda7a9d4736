"""Results, and operations that may still wait or run."""

from twinkle import checks


class Result(dict):
    """The result of an operation: result["loss"] and result.loss are the same."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"engine: the result has no {name!r}, it has {list(self)}"
            ) from None


class Future:
    """The result of an operation that may still wait or run."""

    def __init__(self, future, convert):
        self._future = future
        self._convert = convert

    def done(self):
        """True: it has ended, with a result, an error, or cancelled."""
        return self._future.done()

    def cancel(self):
        """Takes it out of the queue. True: its tenant is as if it had never been, and result()
        raises ConflictError "engine: cancelled". False: it has ended or can't be stopped any more.
        Rank 0 alone of several can, and the others get an InternalError that says so.
        InvalidError: in a fork of the process that submitted it."""
        return self._future.cancel()

    def result(self, timeout=None):
        """Waits (timeout in seconds; None: for ever) and returns what the method says, or raises
        the operation's TwinkleError. What a signal's handler raises meanwhile, as at Ctrl-C,
        cancels the operation; where that is too late, result() gives what came of it. TimeoutError:
        it has not ended; it goes on. InvalidError: in a fork of the process that submitted it."""
        if timeout is not None:
            checks.number("engine: timeout", timeout, least=0)
        return self._convert(self._future.result(timeout))
