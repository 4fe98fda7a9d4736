"""LazyDataset and IterableDataset: work on rows is noted, and done when a row is read."""

import itertools

from twinkle.core import core
from twinkle.dataset import rowwise, source
from twinkle.dataset.dataset import Dataset
from twinkle.dataset.view import Rows
from twinkle.errors import NoLengthError, NotAvailableError, require

_ALL = None  # the key of work on every row, after that on its source's


class NotedDataset(Dataset):
    """A Dataset whose work is noted; see its two kinds."""

    _drops = True  # work may leave a row out, or make several of one

    def __init__(self, dataset_meta=None, **kwargs):
        self._work = {}  # source: functions of (where, row) to a list of rows, in order
        self.do_encode = self.do_check = False  # True: encode, or check, is noted
        super().__init__(dataset_meta, **kwargs)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(self._sources) or 'no source'})"

    def _mix(self, order):
        self._mixed = order

    def _note(self, key, function, nothing, name=None):
        """Notes a function from a row to a list of rows. nothing: the error where that must be one
        row and is not. name: the function's, if it has none."""

        def work(row):
            made = function(row)
            require(self._drops or len(made) == 1, nothing)
            return made

        work.__name__ = name or rowwise.name_of(function)
        self._work.setdefault(key, []).append(lambda where, row: rowwise.called(where, work, row))

    def _map(self, key, function, batch_size=None, **options):
        work = rowwise.Work(function, **options)
        nothing = "it must return one row for one row"
        self._note(key, lambda row: work([row]), nothing, work.__name__)

    def _encode(self, chosen, prompt):
        self._note(_ALL, rowwise.encoder(chosen, prompt), "the row encodes to nothing")
        self.do_encode = True

    def _check(self, chosen):
        can_encode = rowwise.checker(chosen)
        nothing = "the template cannot encode the row"
        self._note(_ALL, lambda row: [row] if can_encode(row) else [], nothing, "check")
        self.do_check = True

    def _done(self, key, where, row):
        """The rows that the work noted for a key makes of one."""
        rows = [row]
        for work in self._work.get(key, ()):
            rows = [made for each in rows for made in work(where, each)]
        return rows


class LazyDataset(NotedDataset):
    """As Dataset, for rows whose preprocessed or encoded form is too large to keep: map, encode and
    check are done anew for every row that is read. Rows may then hold any Python object.

    filter is done at once, on rows as the maps before it make them. A row that a map, encode or
    check refuses is an error, with its file and line, when it is read. mix_dataset() gives a row of
    each source in turn, the shorter ones over again, until the longest has been read once;
    mix_dataset(interleave=False) one source after the other.
    """

    _drops = False

    @property
    def dataset(self):
        """The rows as they were read, without the work that is noted; else as Dataset.dataset."""
        if self._mixed is None:
            return super().dataset
        return Rows(_LazyRows(self, self._sources, lambda key, where, row: [row]))

    @property
    def _rows(self):
        self._require_ready()
        return _LazyRows(self, self._sources, self._finished)

    def _finished(self, key, where, row):
        return self._done(_ALL, where, *self._done(key, where, row))

    def _filter(self, key, keep):
        rows = _LazyRows(self, {key: self._sources[key]}, self._done)
        self._sources[key] = self._sources[key].slice(rowwise.kept_indices(rows, keep))

    def _encode(self, chosen, prompt):
        require(
            getattr(chosen, "truncation_strategy", None) != "split",
            "dataset: truncation_strategy is 'split', which makes several rows of one: a "
            "LazyDataset takes 'raise', 'left' or 'right'",
        )
        super()._encode(chosen, prompt)

    def _all(self):
        return core().Dataset.of(self._rows.rows(0, len(self)))


class _LazyRows:
    """The rows of sources, on which work(key, where, row) is done when they are read."""

    def __init__(self, of, sources, work):
        self._keys, self._parts = list(sources), list(sources.values())
        self._in_turn, self._work = of._mixed != "concat", work

    def __len__(self):
        lengths = list(map(len, self._parts))
        return max(lengths) * len(lengths) if self._in_turn else sum(lengths)

    def _place(self, index):
        """(source's number, index in it)."""
        if self._in_turn:
            at, part = divmod(index % len(self), len(self._parts))
            return part, at % len(self._parts[part])
        part, index = 0, index % len(self)
        while index >= len(self._parts[part]):
            index -= len(self._parts[part])
            part += 1
        return part, index

    def where(self, index):
        part, at = self._place(index)
        return self._parts[part].where(at)

    def row(self, index):
        part, at = self._place(index)
        rows = self._parts[part]
        (row,) = self._work(self._keys[part], rows.where(at), rows.row(at))
        return row

    def rows(self, begin, end):
        return list(map(self.row, range(begin, end)))


class IterableDataset(NotedDataset):
    """As Dataset, for sources that are too large to read at once: it has no length and no [index],
    and every loop over it reads them anew, working on each row as it comes.

    A .jsonl or .txt file is read line by line, a hub streams, a callable in DatasetMeta.data is
    called again for every loop; other files are read whole. data_slice may be an increasing range.
    Rows that a filter, check or encode leaves out are skipped; a row that a map or encode refuses
    is an error with its place. mix_dataset() takes a row of each source in turn until one ends.
    """

    __getitem__ = None
    _needless = ("num_proc", "streaming")

    def _load(self, meta, options):
        return source.Stream(meta, options)

    @property
    def datasets(self):
        """{name: the source}; names as of DatasetMeta.get_id()."""
        return dict(self._sources)

    @property
    def dataset(self):
        """The stream itself."""
        return self

    def _filter(self, key, keep):
        self._work.setdefault(key, []).append(
            lambda where, row: [row] if rowwise.verdict(where, keep, row) else []
        )

    def cast_column(self, column, decode=True):
        """NotAvailableError, always: it needs rows that can be read twice."""
        raise NotAvailableError(
            f"dataset: cast_column({column!r}, decode={decode!r}) needs rows that can be read twice"
        )

    def __len__(self):
        """NoLengthError, always."""
        raise NoLengthError("dataset: a stream's length is not known: count its rows in a loop")

    def __iter__(self):
        """Rows from the first on, read anew. InvalidError: no source, or several that are not
        mixed; a row that cannot be read, or that a map, filter or encode refuses; NotFoundError: a
        directory without data files, or the hub does not give it; NotAvailableError: a missing
        package."""
        self._require_ready()
        streams = [self._worked(key, stream.rows()) for key, stream in self._sources.items()]
        in_turn = self._mixed != "concat"  # a row of each until one has no more
        parts = zip(*streams, strict=False) if in_turn else streams
        for _, row in self._worked(_ALL, itertools.chain.from_iterable(parts)):
            self._record(row)
            yield row

    def _worked(self, key, rows):
        return ((where, made) for where, row in rows for made in self._done(key, where, row))

    def _all(self):
        return core().Dataset.of(iter(self))


Dataset._streams = IterableDataset
