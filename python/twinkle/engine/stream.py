"""Tokens as they come, and the text that each adds."""

import functools
from collections import deque
from dataclasses import dataclass

from twinkle.engine.future import Future

_INCOMPLETE = "\ufffd"  # a decoder's sign for bytes that are no character yet


@dataclass(frozen=True)
class Token:
    """A token of a sample that runs."""

    id: int
    text: str  # its addition to the sequence's text; '' in the midst of a character
    logprob: float | None  # in nats, where sampling_params asks for logprobs
    sequence: int  # from 0 to num_samples - 1
    stop_reason: str | None  # 'stop' or 'length' with a sequence's last token


class TextPieces:
    """The text of one sequence in pieces, which together are decode() of all its tokens."""

    def __init__(self, decode):
        self._decode = decode  # a function of a list of ids
        self._ids = []
        self._given = ""
        self._start = self._read = 0  # ids[start:read] are given, and precede what comes

    def add(self, token, last=False):
        """The text that one more token id adds; '' while it is a part of a character. last: what is
        left of the sequence's text."""
        self._ids.append(token)
        if last:
            text = self._decode(self._ids)
            return text[len(self._given) :]
        before = self._decode(self._ids[self._start : self._read])
        text = self._decode(self._ids[self._start :])
        if text.endswith(_INCOMPLETE) or len(text) <= len(before):
            return ""
        piece = text[len(before) :]
        self._start, self._read = self._read, len(self._ids)
        self._given += piece
        return piece


class TokenStream:
    """An iterator over the Tokens of one prompt's sequences; then result() has the whole response.

    Sampling does not wait for the reader. close(), leaving a `with` block, an exception out of
    the iteration, such as Ctrl-C's, or dropping the stream stops the sampling of what has not
    ended. Tokens that a fork reads raise InvalidError.
    """

    def __init__(self, stream, template, logprobs=False, convert=None):
        self._stream, self._template = stream, template
        self._logprobs, self._convert = logprobs, convert
        self._pieces, self._ready, self._closed = {}, deque(), False

    def __iter__(self):
        return self

    def __next__(self):
        if self._closed:
            raise StopIteration
        try:
            return self._next()
        except BaseException:  # at the end there is nothing left to cancel
            self._stream.cancel()
            raise

    def _next(self):
        ready = self._ready
        if not ready:
            ready.extend(self._stream.take())
        if self._closed:  # by another thread, meanwhile
            raise StopIteration
        if not ready:
            self._stream.future.result()  # the sample's error, if it failed
            raise StopIteration
        _, sequence, token, logprob, reason = ready.popleft()
        # No method of its own, which would be a circle: a stream that is dropped ends at once.
        decode = functools.partial(self._template.decode, skip_special_tokens=True)
        pieces = self._pieces.setdefault(sequence, TextPieces(decode))
        text = pieces.add(token, last=bool(reason))
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
        self._ready, self._pieces = deque(), {}
        self._stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
