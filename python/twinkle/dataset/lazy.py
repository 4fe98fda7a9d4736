"""LazyDataset: work on rows is noted, and done when a row is read."""

from twinkle import checks
from twinkle.core import core
from twinkle.dataset import rowwise
from twinkle.dataset.dataset import _INERT, _check_filter, _construct
from twinkle.dataset.noted import NotedDataset
from twinkle.errors import InvalidError, refuse_unknown, require
from twinkle.preprocessor import DataFilter


class LazyDataset(NotedDataset):
    """As Dataset, for rows whose preprocessed or encoded form is too large to keep: map, encode and
    check are done anew for every row that is read. Rows may then hold any Python object.

    filter is done at once, on rows as the maps before it make them. A row that a map, encode or
    check refuses is an error, with its file and line, when it is read. mix_dataset() gives a row of
    each source in turn, the shorter ones over again, until the longest has been read once;
    mix_dataset(interleave=False) one source after the other.
    """

    @property
    def _rows(self):
        require(bool(self._sources), "dataset: it has no rows: pass a DatasetMeta, or add_dataset")
        require(
            len(self._sources) == 1 or self._order is not None,
            f"dataset: it has {len(self._sources)} sources: call mix_dataset() first",
        )
        parts = [(rows, self._work.get(key, ())) for key, rows in self._sources.items()]
        return _LazyRows(parts, list(self._all_work), self._order != "concat")

    def add_dataset(self, dataset_meta, **kwargs):
        """Loads one more source, as Dataset.add_dataset. InvalidError: mix_dataset came before, and
        as there."""
        require(self._order is None, "dataset: add_dataset must come before mix_dataset")
        super().add_dataset(dataset_meta, **kwargs)

    def filter(self, filter_func, dataset_meta=None, init_args=None, **kwargs):
        """Keeps the rows for which the filter (as of Dataset.filter) returns True. Runs now, over
        all rows of the source, on what the maps noted so far make of them; encode and check do not
        count. InvalidError: no filter, an unknown argument, batched=True, a dataset_meta that map
        refuses, mix_dataset came before, no row is kept; a row that a map or the filter refuses, by
        its file and line."""
        _check_filter(kwargs)
        key = self._key(dataset_meta, "filter")
        keep = _construct(filter_func, DataFilter, init_args)
        rows = _LazyRows([(self._sources[key], self._work.get(key, ()))], [], True)
        self._sources[key] = self._sources[key].slice(rowwise.kept_indices(rows, keep))

    def encode(self, add_generation_prompt=False, **kwargs):
        """Notes that rows are encoded. kwargs: batched and batch_size are accepted and change
        nothing: a row is encoded when it is read. InvalidError: truncation_strategy 'split', since
        a row must stay one row; no template, an unknown argument; when a row is read: it cannot be
        encoded, or encodes to nothing."""
        refuse_unknown("dataset: encode", kwargs, ("batched", "batch_size", *_INERT))
        prompt = checks.flag("dataset: add_generation_prompt", add_generation_prompt)
        template = self._require_template("encode")
        require(
            getattr(template, "truncation_strategy", None) != "split",
            "dataset: truncation_strategy is 'split', which makes several rows of one: a "
            "LazyDataset takes 'raise', 'left' or 'right'",
        )

        def encode(row):
            made = [f for f in template.batch_encode([row], add_generation_prompt=prompt) if f]
            require(made, "the row encodes to nothing")
            return made[0]

        self._all_work.append(encode)

    def check(self, **kwargs):
        """Notes that a row which the template cannot encode is an InvalidError when it is read.
        kwargs: as encode's. InvalidError here: no template, an unknown argument."""
        refuse_unknown("dataset: check", kwargs, ("batched", "batch_size", *_INERT))
        template = self._require_template("check")

        def check(row):
            require(template.check(row) is not None, "the template cannot encode the row")
            return row

        self._all_work.append(check)


class _LazyRows:
    """Rows of parts (core's dataset, its work), processed when they are read."""

    def __init__(self, parts, work, interleave):
        self._parts, self._work, self._interleave = parts, work, interleave

    def __len__(self):
        lengths = [len(rows) for rows, _ in self._parts]
        if not self._interleave:
            return sum(lengths)
        return max(lengths) * len(lengths) if min(lengths) else 0

    def _place(self, index):
        """(part, index in it)."""
        if self._interleave:
            part = index % len(self._parts)
            return part, index // len(self._parts) % len(self._parts[part][0])
        for part, (rows, _) in enumerate(self._parts):
            if index < len(rows):
                return part, index
            index -= len(rows)
        raise InvalidError(f"dataset: there is no row {index} more")

    def where(self, index):
        part, at = self._place(index)
        return self._parts[part][0].where(at)

    def row(self, index):
        part, at = self._place(index)
        rows, work = self._parts[part]
        row = rows.row(at)
        for function in (*work, *self._work):
            row = rowwise._called(rows, function, row, at)
        return row

    def rows(self, begin, end):
        return [self.row(index) for index in range(begin, end)]

    def save(self, path, format):
        core().Dataset.of(self.rows(0, len(self))).save(path, format)
