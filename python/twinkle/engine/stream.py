"""Tokens as they come, and the text that each adds."""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial

from twinkle.core import core
from twinkle.engine.future import Future


@dataclass(frozen=True)
class Token:
    """A token of a sample that runs."""

    id: int
    text: str  # its addition to the sequence's text; '' in the midst of a character
    logprob: float | None  # in nats, where sampling_params asks for logprobs
    sequence: int  # from 0 to num_samples - 1
    stop_reason: str | None  # 'stop' or 'length' with a sequence's last token


class TokenStream:
    """An iterator over the Tokens of one prompt's sequences; then result() has the whole response.

    Sampling does not wait for the reader. close(), leaving a `with` block, an exception out of
    the iteration, such as Ctrl-C's, or dropping the stream stops the sampling of what has not
    ended. Tokens that a fork reads raise InvalidError.
    """

    def __init__(self, stream, template, logprobs=False, convert=None):
        self._stream, self._logprobs, self._convert = stream, logprobs, convert
        # No method of its own, which would be a circle: a stream that is dropped ends at once.
        decode = partial(template.decode, skip_special_tokens=True)
        self._pieces, self._closed = defaultdict(partial(core().TextPieces, decode)), False

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self._next()
        except BaseException:  # at the end there is nothing left to cancel
            self._stream.cancel()
            raise

    def _next(self):
        event = self._stream.next()
        if event is None:
            if not self._closed:
                self._stream.future.result()  # the sample's error, if it failed
            raise StopIteration
        sequence, token, logprob, reason = event
        pieces = self._pieces[sequence]
        text = pieces.add_last(token) if reason else pieces.add(token)
        return Token(token, text, logprob if self._logprobs else None, sequence, reason or None)

    def result(self, timeout=None):
        """Waits for the end, whether or not the tokens were read, and returns the SampleResponse,
        whose tokens and text are those of the stream. timeout as a Future's. ConflictError: closed
        before the end."""
        return Future(self._stream.future, self._convert).result(timeout)

    def close(self):
        """Ends the iteration and the sampling, and frees the tokens that were not read. result()
        stays, if the sample had ended."""
        self._closed = True
        self._pieces.clear()
        self._stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
