"""Dataset: what scripts call; rows and work are the C++ core's."""

import inspect

from twinkle import checks, preprocessor, template
from twinkle.core import core
from twinkle.dataset import recorder, source
from twinkle.dataset.meta import DatasetMeta
from twinkle.dataset.view import Rows
from twinkle.dataset.work import Check, Encode, Filter, Map, name_of
from twinkle.errors import InvalidError, NotAvailableError, refuse_unknown, require
from twinkle.plugin import construct_class
from twinkle.preprocessor import DataFilter, Preprocessor
from twinkle.remote.decorate import remote_class
from twinkle.remote.how import at_once, of_one
from twinkle.without_effect import WITHOUT_EFFECT

_LOADER = ("streaming", "num_proc", "revision", "features", "trust_remote_code", "token")
_INERT = WITHOUT_EFFECT["Dataset.map, filter, encode, check"]


@remote_class(execute="all", listed=False)
class Dataset:
    """Rows to train on. map, filter and encode change the dataset in place.

    dataset_meta: the first source; add_dataset adds others, mix_dataset combines them.
    kwargs: revision, features and token are passed to a hub's loader; num_proc is accepted without
    effect, since all cores are used anyway; with streaming=True it is an IterableDataset.
    InvalidError: an unknown one, one that is set without a dataset_meta; and what add_dataset
    raises.
    """

    _streams = None  # the class of Dataset(streaming=True)
    _needless = ("num_proc",)  # options of _LOADER that hold in any case

    def __new__(cls, *args, **kwargs):
        is_stream = cls is Dataset and kwargs.get("streaming") is True
        return object.__new__(cls._streams if is_stream else cls)

    def __init__(self, dataset_meta=None, **kwargs):
        self._sources = {}
        self._data = []  # the sources in memory, whose names are theirs as long as they are here
        self._mixed = None  # the rows that mix_dataset made
        self._recorder = None  # for save_as(mode='training')
        self.template = None
        if dataset_meta is not None:
            self.add_dataset(dataset_meta, **kwargs)
            return
        refuse_unknown("dataset: Dataset", kwargs, _LOADER)
        for name in sorted(set(kwargs) - set(self._needless)):
            require(
                kwargs[name] is None or kwargs[name] is False,
                f"dataset: {name} is an option of a hub's loader, but there is no dataset_meta: "
                "pass it to add_dataset",
            )

    # ---- sources

    @at_once
    def add_dataset(self, dataset_meta, **kwargs):
        """Loads one more source. InvalidError: no DatasetMeta, an unknown argument,
        streaming=True; it is there already or has no rows, mix_dataset came before, or a row is
        bad; NotFoundError: no such file, or the hub does not give it; NotAvailableError: a missing
        package. An IterableDataset reads it in every loop: its data_slice must be an increasing
        range."""
        refuse_unknown("dataset: Dataset", kwargs, _LOADER)
        key = _id_of(dataset_meta)
        require(key not in self._sources, f"dataset: {key} has been added already")
        require(self._mixed is None, "dataset: add_dataset must come before mix_dataset")
        options = {k: v for k, v in kwargs.items() if k not in self._needless}
        self._sources[key] = self._load(dataset_meta, options)
        self._data.append(dataset_meta.data)

    def _load(self, meta, options):
        require(
            not options.pop("streaming", False),
            "dataset: streaming=True is for all sources: Dataset(dataset_meta, streaming=True), or "
            "an IterableDataset",
        )
        rows = source.load(meta, **options)
        require(
            len(rows) > 0,
            f"dataset: {meta.dataset_id or 'data'} has no rows"
            + ("" if meta.data_slice is None else ", or data_slice selects none"),
        )
        return rows

    @at_once
    def mix_dataset(self, interleave=True):
        """Combines all sources: interleaved row by row until the shortest ends (a LazyDataset's
        shorter ones begin again, until the longest ends), or concatenated. InvalidError: there is
        no source, or interleave is neither True nor False."""
        order = "interleave" if checks.flag("dataset: interleave", interleave) else "concat"
        require(bool(self._sources), "dataset: there is nothing to mix: add_dataset comes first")
        self._mix(order)

    def _mix(self, order):
        if len(self._sources) > 1:
            self._mixed = getattr(core().Dataset, order)(list(self._sources.values()))

    @property
    def datasets(self):
        """{name: its rows as they are now} of the sources; names as of DatasetMeta.get_id()."""
        return {key: Rows(rows) for key, rows in self._sources.items()}

    @property
    def dataset(self):
        """The rows as they are now, of the first source until mix_dataset is called: len() and
        [index], as of the Dataset. None: there is no source."""
        rows = next(iter(self._sources.values()), None) if self._mixed is None else self._mixed
        return rows if rows is None else Rows(rows)

    def _require_ready(self):
        require(bool(self._sources), "dataset: it has no rows: pass a DatasetMeta, or add_dataset")
        require(
            len(self._sources) == 1 or self._mixed is not None,
            f"dataset: it has {len(self._sources)} sources: call mix_dataset() first",
        )

    @property
    def _rows(self):
        self._require_ready()
        return next(iter(self._sources.values())) if self._mixed is None else self._mixed

    def _set_rows(self, rows, key=None):
        """The rows of a source, or, where `key` is None, all."""
        if key is None and self._mixed is not None:
            self._mixed = rows
        else:
            self._sources[key or next(iter(self._sources))] = rows

    def _key(self, dataset_meta, what):
        require(self._mixed is None, f"dataset: {what} must come before mix_dataset")
        require(
            dataset_meta is not None or len(self._sources) == 1,
            f"dataset: it has {len(self._sources)} sources: "
            f"choose one for {what} with dataset_meta=",
        )
        key = next(iter(self._sources)) if dataset_meta is None else _id_of(dataset_meta)
        require(
            key in self._sources,
            f"dataset: there is no source {key}; there are {', '.join(self._sources) or 'none'}",
        )
        return key

    # ---- work on rows

    @at_once
    def map(self, preprocess_func, dataset_meta=None, init_args=None, **kwargs):
        """Sets the fields that a preprocessor returns on every row.

        preprocess_func: a Preprocessor, a subclass or its name, built with init_args; or a function
        of a dict of columns (batched=False: of a row). kwargs: batch_size (1000), remove_columns
        for Python code. InvalidError: another preprocessor or argument; dataset_meta names no
        source, or is None while there is not exactly one; mix_dataset came before; what the
        preprocessor raises of a row, with its file and line, or wrongly returns, no row at all
        included. The dataset is then unchanged. A LazyDataset and an IterableDataset do it a row at
        a time, when that is read.
        """
        known = ("batched", "batch_size", "remove_columns", *_INERT)
        refuse_unknown("dataset: map", kwargs, known)
        options = {name: value for name, value in kwargs.items() if name not in _INERT}
        key = self._key(dataset_meta, "map")
        function = _construct(preprocess_func, Preprocessor, init_args)
        self._do(key, Map(function, **options))

    def _do(self, key, work):
        """Does work on the rows of a source, or, where `key` is None, on all. InvalidError: it
        leaves none."""
        rows = self._rows if key is None else self._of(key)
        made = work.over(rows)
        require(
            len(made) > 0,
            f"dataset: {work.__name__} leaves none of the {len(rows)} rows{work.remedy}; the first "
            f"is {rows.where(0)}",
        )
        self._set_rows(made, key)

    def _of(self, key):
        """The rows of a source, on which work is done at once."""
        return self._sources[key]

    @at_once
    def filter(self, filter_func, dataset_meta=None, init_args=None, **kwargs):
        """Keeps the rows for which a Filter (object, class or name) or a function returns True.
        InvalidError: batched=True, or no filter; a dataset_meta that map refuses, or mix_dataset
        came before; what the filter raises names the row; it keeps no row. The dataset is then
        unchanged. A LazyDataset does it at once, too, on rows as the maps before it make them."""
        refuse_unknown("dataset: filter", kwargs, ("batched", *_INERT))
        require(
            not kwargs.get("batched"), "dataset: filter takes a row at a time, not batched=True"
        )
        key = self._key(dataset_meta, "filter")
        self._do(key, Filter(_construct(filter_func, DataFilter, init_args)))

    @at_once
    def set_template(self, template_func, **kwargs):
        """The template that encodes: an object, or a class or its name with its arguments."""
        self.template = construct_class(template_func, template.Template, template, **kwargs)

    @at_once
    def encode(self, add_generation_prompt=False, **kwargs):
        """Adds input_ids, labels (already shifted), attention_mask, position_ids and length.

        Rows without messages whose columns are those of a known form (docs/training.md) get the
        fields of its preprocessor first, unless add_generation_prompt is True; a line of the log
        says as what they are read. Rows that encode to nothing are dropped. kwargs: batched and
        batch_size are accepted without effect, for calls written for map. InvalidError: a row that
        cannot be encoded, or be read in two ways, with its file and line; no template, no row that
        encodes to something, several sources that are not mixed, an unknown argument; of a
        LazyDataset the truncation_strategy 'split'. The dataset then stays as it was.
        """
        refuse_unknown("dataset: encode", kwargs, ("batched", "batch_size", *_INERT))
        prompt = checks.flag("dataset: add_generation_prompt", add_generation_prompt)
        self._do(None, Encode(self.template, prompt))

    @at_once
    def check(self, **kwargs):
        """Drops the rows that the template cannot encode; in a LazyDataset such a row is an
        InvalidError when it is read. kwargs: as encode's. InvalidError: no template, no row that it
        can encode, several sources that are not mixed, an unknown argument; what a template in
        Python raises of a row, with its file and line. The dataset then stays as it was."""
        refuse_unknown("dataset: check", kwargs, ("batched", "batch_size", *_INERT))
        self._do(None, Check(self.template))

    @at_once
    def cast_column(self, column, decode=True):
        """decode=False: images stay as they were read, which they do anyway. True is refused:
        images come with multimodal models. InvalidError: no row has the column."""
        checks.text("dataset: column", column)
        if checks.flag("dataset: decode", decode):
            raise NotAvailableError(
                f"dataset: cast_column({column!r}, decode=True) is for image columns, which this "
                "version does not have"
            )
        found = any(column in row for row in Rows(self._rows))
        require(found, f"dataset: no row has a field {column!r}")

    @of_one
    def save_as(self, path, format=None, batch_size=1000, mode="immediate"):
        """Writes the rows as jsonl, json (which is jsonl), csv or parquet (format, else the path's
        extension), whole or not at all; of a stream, all of them, which must fit in memory. Nested
        values are JSON in a CSV's cells.

        mode='training': writes the rows that are read from now on, by index or in a loop, until
        flush_save. batch_size: rows written at a time, and of a row group.
        InvalidError: another format or mode, a row that the format cannot hold, a path that cannot
        be written; no file is left then.
        """
        now = checks.one_of("dataset: mode", mode, ("immediate", "training")) == "immediate"
        require(
            now or self._recorder is None,
            "dataset: rows are being saved to another file: call flush_save() first",
        )
        writing = recorder.Recorder(path, format, batch_size)
        if now:
            writing.write(self._all())
        else:
            self._recorder = writing

    def _all(self):
        """The rows, as the core has them."""
        return self._rows

    @at_once
    def flush_save(self):
        """Ends save_as(mode='training'): its file is there now. Without one it does nothing."""
        if self._recorder is not None:
            writing, self._recorder = self._recorder, None
            writing.close()

    def _record(self, row):
        if self._recorder is not None:
            self._recorder.add(row)

    # ---- rows

    def __repr__(self):
        try:
            rows = self._rows
        except InvalidError:  # no source, or several that are not mixed
            return f"{type(self).__name__}({len(self._sources)} sources)"
        fields = ", ".join(rows.row(0)) if len(rows) else ""
        return f"{type(self).__name__}({len(rows)} rows" + (f": {fields})" if fields else ")")

    @of_one
    def __len__(self):
        return len(self._rows)

    @of_one
    def __getitem__(self, index):
        """A row for an index; a dict of columns for a slice; a column for its name.
        IndexError: no such row; KeyError: no row has such a column; InvalidError: a row is bad."""
        return Rows(self._rows, self._record)[index]

    @of_one
    def __iter__(self):
        return iter(Rows(self._rows, self._record))


def _id_of(dataset_meta):
    must = "a DatasetMeta"
    return checks.instance("dataset: dataset_meta", dataset_meta, DatasetMeta, must).get_id()


def _construct(value, base, init_args):
    """A Preprocessor or Filter from what users pass; functions stay what they are."""
    init_args = checks.mapping("dataset: init_args", init_args, none=True)
    if inspect.isclass(value) or isinstance(value, base) or not callable(value):
        return construct_class(value, base, preprocessor, **init_args)
    require(not init_args, f"dataset: {name_of(value)} is a function, it cannot take init_args")
    return value
