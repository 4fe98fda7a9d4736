"""IterableDataset: rows that come one after the other and are not kept."""

import itertools

from twinkle import checks
from twinkle.dataset import rowwise, source
from twinkle.dataset.dataset import _INERT, _LOADER, _check_filter, _construct, passing
from twinkle.dataset.meta import DatasetMeta
from twinkle.dataset.noted import NotedDataset
from twinkle.errors import NotAvailableError, refuse_unknown, require
from twinkle.preprocessor import DataFilter


class IterableDataset(NotedDataset):
    """As Dataset, for sources that are too large to read at once: it has no length and no [index],
    and every loop over it reads them anew, working on each row as it comes.

    A .jsonl or .txt file is read line by line, a hub streams, a callable in DatasetMeta.data is
    called again for every loop; other files are read whole. data_slice may be an increasing range.
    Rows that a filter, check or encode leaves out are skipped; a row that a map or encode refuses
    is an error with its place. mix_dataset() takes a row of each source in turn until one ends.
    """

    __len__ = None
    __getitem__ = None
    _needless = ("num_proc", "streaming")

    def add_dataset(self, dataset_meta, **kwargs):
        """One more source, which is opened when it is read. InvalidError: no DatasetMeta, an
        unknown argument, a data_slice that is no increasing range; it is there already, or
        mix_dataset came before; NotFoundError: no such file."""
        refuse_unknown("dataset: IterableDataset", kwargs, _LOADER)
        if not isinstance(dataset_meta, DatasetMeta):
            checks.refuse("dataset: dataset_meta", dataset_meta, "a DatasetMeta")
        kwargs = {k: v for k, v in kwargs.items() if k not in self._needless}
        require(self._order is None, "dataset: add_dataset must come before mix_dataset")
        key = dataset_meta.get_id()
        require(key not in self._sources, f"dataset: {key} has been added already")
        self._sources[key] = source.Stream(dataset_meta, kwargs)
        self._data.append(dataset_meta.data)

    def _mapped(self, work):
        return lambda where, row: [rowwise.called(where, work, row)]

    def filter(self, filter_func, dataset_meta=None, init_args=None, **kwargs):
        """Notes a filter, as Dataset.filter takes it. InvalidError: no filter, an unknown argument,
        batched=True, a dataset_meta that map refuses, mix_dataset came before; when a row is
        read: what the filter raises of it, or an answer that is neither True nor False."""
        _check_filter(kwargs)
        key = self._key(dataset_meta, "filter")
        keep = _construct(filter_func, DataFilter, init_args)
        self._note(key, lambda where, row: [row] if rowwise.verdict(where, keep, row) else [])

    def encode(self, add_generation_prompt=False, **kwargs):
        """Notes that rows are encoded; truncation_strategy 'split' makes several of one. kwargs:
        batched and batch_size are accepted and change nothing: rows come one at a time.
        InvalidError: no template, an unknown argument; when a row is read: it cannot be encoded."""
        refuse_unknown("dataset: encode", kwargs, ("batched", "batch_size", *_INERT))
        prompt = checks.flag("dataset: add_generation_prompt", add_generation_prompt)
        template = self._require_template("encode")

        def encode(row):
            made = template.batch_encode([row], add_generation_prompt=prompt)
            return [feature for feature in made if feature]

        self._all_work.append(lambda where, row: rowwise.called(where, encode, row))

    def check(self, **kwargs):
        """Notes that rows which the template cannot encode are left out. kwargs: as encode's.
        InvalidError: no template, an unknown argument; when a row is read: what the template raises
        of it."""
        refuse_unknown("dataset: check", kwargs, ("batched", "batch_size", *_INERT))
        keep = passing(self._require_template("check"))
        self._all_work.append(lambda where, row: [row] if rowwise.called(where, keep, row) else [])

    def cast_column(self, column, decode=True):
        """NotAvailableError, always: it needs rows that can be read twice."""
        raise NotAvailableError(
            f"dataset: cast_column({column!r}, decode={decode!r}) needs rows that can be read twice"
        )

    def save_as(self, path, format=None, batch_size=1000, mode="training"):
        """mode='training' alone: rows are written as they are read, until flush_save. InvalidError:
        another mode, and as Dataset.save_as."""
        require(
            mode == "training", f"dataset: mode is {mode!r}, for a stream it must be 'training'"
        )
        super().save_as(path, format, batch_size, mode)

    def __iter__(self):
        """Rows from the first on, read anew. InvalidError: no source, or several that are not
        mixed; a row that cannot be read, or that a map, filter or encode refuses; NotFoundError: a
        directory without data files, or the hub does not give it; NotAvailableError: a missing
        package."""
        require(bool(self._sources), "dataset: it has no rows: pass a DatasetMeta, or add_dataset")
        require(
            len(self._sources) == 1 or self._order is not None,
            f"dataset: it has {len(self._sources)} sources: call mix_dataset() first",
        )
        streams = [
            _worked(stream.rows(), self._work.get(key, ())) for key, stream in self._sources.items()
        ]
        mixed = itertools.chain(*streams) if self._order == "concat" else _in_turn(streams)
        return self._recorded(_worked(mixed, self._all_work))

    def _recorded(self, rows):
        for _, row in rows:
            if self._recorder is not None:
                self._recorder.add(row)
            yield row


def _worked(rows, work):
    """(where, row) after all functions of `work`."""
    for function in work:
        rows = _one_after_the_other(function, rows)
    return rows


def _one_after_the_other(function, rows):
    for where, row in rows:
        for made in function(where, row):
            yield where, made


def _in_turn(streams):
    """A row of each until one has no more."""
    for rows in zip(*streams, strict=False):
        yield from rows
