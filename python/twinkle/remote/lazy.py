"""LazyResult: a result that stays in the workers until somebody looks at it."""

import threading
from contextlib import contextmanager

from twinkle.remote import held
from twinkle.remote.collect import join
from twinkle.remote.messages import REFER

_going = threading.local()  # .to: the WorkerGroup that a call is being sent to


@contextmanager
def going_to(group):
    """In its block: what is pickled is for the group's workers."""
    before, _going.to = destination(), group
    try:
        yield
    finally:
        _going.to = before


def destination():
    """The WorkerGroup for which this thread pickles; None: for nobody."""
    return getattr(_going, "to", None)


class EarlierCallError(Exception):
    """error: what has failed before, where a result of it was to be sent."""

    def __init__(self, error):
        super().__init__(str(error))
        self.error = error


class LazyResult:
    """What a remote call has given or will give. Called, it is the value; it has the value's len,
    items and attributes, too, and is true where the value is. The value is fetched once.

    Passed to a method of the same group, the workers take what they have; to one of another group,
    they fetch it from worker to worker. Every access raises what the call raised; InvalidError: of
    a run that has ended."""

    def __init__(self, pending, key, ranks, collect, timeout=None):
        self._pending, self._key, self._ranks = pending, key, ranks
        self._collect, self._timeout = collect, timeout
        self._value, self._has_value, self._refs = None, False, None
        pending.group.forget_with(self, key, ranks)

    def __call__(self):
        """The value."""
        if not self._has_value:
            group = self._pending.group
            self._answered()
            sent = group.fetch(self._key, self._ranks, self._pending)
            found = group.outcomes(sent, self._timeout)
            self._value = join(self._collect, [found[rank].value for rank in self._ranks])
            self._has_value, self._refs = True, None
        return self._value

    @property
    def _what(self):
        return f"the result of {self._pending.what}"

    def _answered(self):
        """What the workers have said, which those of a run that has ended may never do."""
        group = self._pending.group
        group.check_run(self._what, group)
        return group.outcomes(self._pending, self._timeout)

    def __iter__(self):
        return iter(self())

    def __len__(self):
        rows = self.num_rows()
        return len(self()) if rows is None else rows

    def __getitem__(self, index):
        return self()[index]

    def __contains__(self, item):
        return item in self()

    def __eq__(self, other):
        return self() == (other() if isinstance(other, LazyResult) else other)

    __hash__ = object.__hash__

    def __bool__(self):
        return bool(self())

    def __float__(self):
        return float(self())

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self(), name)

    def __repr__(self):
        return repr(self())

    # ---- as an argument

    def num_rows(self):
        """The whole's rows, where it is one list, or lists put one after the other; None where not.
        Waits until the call has ended."""
        lengths = self._lengths()
        return None if lengths is None else sum(lengths)

    def _lengths(self):
        if self._has_value or self._collect not in ("flatten", "first", "last_pp_first"):
            rows = self._value if isinstance(self._value, list) else None
            return None if rows is None else [len(rows)]
        found = self._answered()
        lengths = [found[rank].length for rank in self._ranks]
        return None if None in lengths else lengths

    def is_of_rows(self, rows):
        """Whether it has an entry for each of `rows` rows, or is a model's outputs of a batch."""
        return getattr(self._collect, "of_rows", False) or self.num_rows() == rows

    def piece(self, piece, pieces, deep=True):
        """What a worker of data rank `piece` takes of it. deep: as of dispatch.num_rows."""
        return _Piece(self, (piece, pieces, deep))

    def __reduce__(self):
        return self._reduced(None)

    def _reduced(self, place):
        to, group = destination(), self._pending.group
        group.check_run(self._what, to)
        if self._has_value:
            return held.given, (self._value, place)
        try:
            self._pending.check()
            if to is group and len(self._ranks) == group.size:
                if place is not None and place[1] == group.size and self._of_rows(place[2]):
                    return held.own, (self._key,)
                if group.size == 1:
                    return held.alone, (self._key, self._collect, place)
            if self._refs is None:
                sent = group.fetch(self._key, self._ranks, self._pending, answer=REFER)
                self._refs = sent.ordered_refs()
        except Exception as error:
            raise EarlierCallError(error) from error
        return held.joined, (self._refs, self._collect, place, group.name)

    def _of_rows(self, deep):
        """Whether a worker's own part is the piece of the whole that it would be cut."""
        lengths = self._lengths()
        if lengths is None:
            return deep and getattr(self._collect, "of_rows", False)
        total, count = sum(lengths), len(lengths)
        each, more = divmod(total, count)
        return lengths == [each + (i < more) for i in range(count)]


class _Piece:
    def __init__(self, lazy, place):
        self._lazy, self._place = lazy, place

    def __reduce__(self):
        return self._lazy._reduced(self._place)
