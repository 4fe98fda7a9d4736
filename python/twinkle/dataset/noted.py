"""LazyDataset and IterableDataset: work on rows is noted, and done when a row is read."""

import itertools

from twinkle.core import core
from twinkle.dataset import source
from twinkle.dataset.dataset import Dataset
from twinkle.dataset.view import Rows
from twinkle.dataset.work import Check, Encode, Filter, called
from twinkle.errors import NoLengthError, NotAvailableError, require


class NotedDataset(Dataset):
    """A Dataset whose work is noted; see its two kinds."""

    _drops = True  # work may leave a row out, or make several of one

    def __init__(self, dataset_meta=None, **kwargs):
        self._work = {}  # source: its work in order; None: that on every row, after its source's
        self.do_encode = self.do_check = False  # True: encode, or check, is noted
        super().__init__(dataset_meta, **kwargs)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(self._sources) or 'no source'})"

    def _mix(self, order):
        self._mixed = order

    def _do(self, key, work):
        self._work.setdefault(key, []).append(work)
        self.do_encode |= isinstance(work, Encode)
        self.do_check |= isinstance(work, Check)

    def _done(self, where, row, *keys):
        """The rows that the work noted for the keys makes of one."""
        rows = [row]
        for work in itertools.chain.from_iterable(self._work.get(key, ()) for key in keys):
            rows = [made for each in rows for made in called(where, work, each)]
            one = self._drops or len(rows) == 1
            require(one, f"dataset: {where}: {work.__name__}: {work.none}")
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
        return Rows(_LazyRows(self._sources, self._mixed, lambda where, row, key: [row]))

    @property
    def _rows(self):
        self._require_ready()
        return _LazyRows(self._sources, self._mixed, lambda *row: self._done(*row, None))

    def _do(self, key, work):
        split = getattr(self.template, "truncation_strategy", None) == "split"
        require(
            not (split and isinstance(work, Encode)),
            "dataset: truncation_strategy is 'split', which makes several rows of one: a "
            "LazyDataset takes 'raise', 'left' or 'right'",
        )
        (Dataset if type(work) is Filter else NotedDataset)._do(self, key, work)

    def _of(self, key):
        return _LazyRows({key: self._sources[key]}, None, self._done)

    def _all(self):
        return core().Dataset.of(self._rows.rows(0, len(self)))


class _LazyRows:
    """The rows of sources {key: rows of the core}, one source after the other where `order` is
    'concat', else one of each in turn. work(where, row, key): a list of the one row that is made of
    one when it is read."""

    def __init__(self, sources, order, work):
        self._keys, self._parts, self._work = list(sources), list(sources.values()), work
        self._order = core().Mixture(list(map(len, self._parts)), order != "concat")

    def __len__(self):
        return len(self._order)

    def where(self, index):
        part, at = self._order.at(index)
        return self._parts[part].where(at)

    def row(self, index):
        part, at = self._order.at(index)
        raw = self._parts[part].row(at)
        (row,) = self._work(self._parts[part].where(at), raw, self._keys[part])
        return row

    def rows(self, begin, end):
        return list(map(self.row, range(begin, end)))

    def slice(self, indices):
        """The core's rows of the only source, without the work."""
        return self._parts[0].slice(indices)


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
        # In turn: a row of each until one has no more.
        parts = streams if self._mixed == "concat" else zip(*streams, strict=False)
        for _, row in self._worked(None, itertools.chain.from_iterable(parts)):
            self._record(row)
            yield row

    def _worked(self, key, rows):
        return ((where, made) for where, row in rows for made in self._done(where, row, key))

    def _all(self):
        return core().Dataset.of(iter(self))


Dataset._streams = IterableDataset
