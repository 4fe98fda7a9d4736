"""Dataset: what scripts call; rows and work are the C++ core's."""

import inspect

from twinkle import checks, preprocessor, template
from twinkle.core import core
from twinkle.dataset import recorder, rowwise, source
from twinkle.dataset.meta import DatasetMeta
from twinkle.errors import InvalidError, NotAvailableError, refuse_unknown, require
from twinkle.logger import get_logger
from twinkle.plugin import construct_class
from twinkle.preprocessor import DataFilter, Preprocessor
from twinkle.preprocessor.base import map_row_to_col
from twinkle.remote.decorate import remote_class
from twinkle.remote.how import at_once, of_one

_LOADER = ("streaming", "num_proc", "revision", "features", "trust_remote_code", "token")
_INERT = ("load_from_cache_file", "num_proc", "desc", "keep_in_memory", "writer_batch_size")


@remote_class(execute="all", listed=False)
class Dataset:
    """Rows to train on. map, filter and encode change the dataset in place.

    dataset_meta: the first source; add_dataset adds others, mix_dataset combines them.
    kwargs: revision, features and token are passed to a hub's loader; num_proc is accepted without
    effect, since all cores are used anyway; streaming=True is refused. InvalidError: an unknown
    one, one that is set without a dataset_meta; and what add_dataset raises.
    """

    _needless = ("num_proc",)  # options of _LOADER that hold in any case

    def __init__(self, dataset_meta=None, **kwargs):
        self._sources = {}
        self._data = []  # the sources in memory, whose names are theirs as long as they are here
        self._mixed = None
        self._recorder = None  # for save_as(mode='training')
        self.template = None
        if dataset_meta is not None:
            self.add_dataset(dataset_meta, **kwargs)
        else:
            refuse_unknown("dataset: Dataset", kwargs, _LOADER)
            for name in sorted(set(kwargs) - set(self._needless)):
                require(
                    kwargs[name] is None or kwargs[name] is False,
                    f"dataset: {name} is an option of a hub's loader, but there is no "
                    "dataset_meta: pass it to add_dataset",
                )

    # ---- sources

    @at_once
    def add_dataset(self, dataset_meta, **kwargs):
        """Loads one more source. InvalidError: no DatasetMeta, an unknown argument; it is there
        already or has no rows, mix_dataset came before, or a row is bad; NotFoundError: no such
        file, or the hub does not give it; NotAvailableError: streaming=True, or a missing package.
        """
        refuse_unknown("dataset: Dataset", kwargs, _LOADER)
        require(
            isinstance(dataset_meta, DatasetMeta),
            f"dataset: dataset_meta is a {type(dataset_meta).__name__}, it must be a DatasetMeta",
        )
        if kwargs.pop("streaming", False):
            raise NotAvailableError(
                "dataset: streaming=True is not for a Dataset: use an IterableDataset"
            )
        kwargs.pop("num_proc", None)
        key = dataset_meta.get_id()
        require(key not in self._sources, f"dataset: {key} has been added already")
        require(self._mixed is None, "dataset: add_dataset must come before mix_dataset")
        rows = source.load(dataset_meta, **kwargs)
        require(
            len(rows) > 0,
            f"dataset: {dataset_meta.dataset_id or 'data'} has no rows"
            + ("" if dataset_meta.data_slice is None else ", or data_slice selects none"),
        )
        self._sources[key] = rows
        self._data.append(dataset_meta.data)

    @at_once
    def mix_dataset(self, interleave=True):
        """Combines all sources: interleaved row by row until the shortest ends, or concatenated.
        InvalidError: there is no source."""
        interleave = checks.flag("dataset: interleave", interleave)
        parts = list(self._sources.values())
        require(bool(parts), "dataset: there is nothing to mix: add_dataset comes first")
        if len(parts) > 1:
            mix = core().Dataset.interleave if interleave else core().Dataset.concat
            self._mixed = mix(parts)

    @property
    def _rows(self):
        if self._mixed is not None:
            return self._mixed
        require(bool(self._sources), "dataset: it has no rows: pass a DatasetMeta, or add_dataset")
        require(
            len(self._sources) == 1,
            f"dataset: it has {len(self._sources)} sources: call mix_dataset() first",
        )
        return next(iter(self._sources.values()))

    def _set_rows(self, rows):
        if self._mixed is not None:
            self._mixed = rows
        else:
            self._sources = dict.fromkeys(self._sources, rows)

    def _key(self, dataset_meta, what):
        require(self._mixed is None, f"dataset: {what} must come before mix_dataset")
        if dataset_meta is None:
            require(
                len(self._sources) == 1,
                f"dataset: it has {len(self._sources)} sources: "
                f"choose one for {what} with dataset_meta=",
            )
            return next(iter(self._sources))
        require(
            isinstance(dataset_meta, DatasetMeta),
            f"dataset: dataset_meta is a {type(dataset_meta).__name__}, it must be a DatasetMeta",
        )
        key = dataset_meta.get_id()
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
        included. The dataset is then unchanged.
        """
        known = ("batched", "batch_size", "remove_columns", *_INERT)
        refuse_unknown("dataset: map", kwargs, known)
        options = {key: value for key, value in kwargs.items() if key not in _INERT}
        key = self._key(dataset_meta, "map")
        work = _construct(preprocess_func, Preprocessor, init_args)
        from twinkle.preprocessor.builtin import is_builtin

        rows = self._sources[key]
        if is_builtin(work) and not options.get("remove_columns"):
            self._sources[key] = rows.map(work.core_name, work.arguments)
        else:
            if isinstance(work, Preprocessor):
                options["batched"] = True
            self._sources[key] = rowwise.map_rows(rows, work, **options)

    @at_once
    def filter(self, filter_func, dataset_meta=None, init_args=None, **kwargs):
        """Keeps the rows for which a Filter (object, class or name) or a function returns True.
        InvalidError: batched=True, or no filter; a dataset_meta that map refuses, or mix_dataset
        came before; what the filter raises names the row; it keeps no row. The dataset is then
        unchanged."""
        _check_filter(kwargs)
        key = self._key(dataset_meta, "filter")
        keep = _construct(filter_func, DataFilter, init_args)
        self._sources[key] = rowwise.filter_rows(self._sources[key], keep)

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
        encodes to something, several sources that are not mixed, an unknown argument. The dataset
        then stays as it was.
        """
        refuse_unknown("dataset: encode", kwargs, ("batched", "batch_size", *_INERT))
        add_generation_prompt = checks.flag("dataset: add_generation_prompt", add_generation_prompt)
        rows, chosen = self._rows, self._require_template("encode")
        for line in [] if add_generation_prompt else rows.readings():
            get_logger().info(line)
        if _is_core_template(chosen):
            self._set_encoded(rows, rows.encode(chosen._template, add_generation_prompt))
            for line in [] if add_generation_prompt else self._rows.remarks(chosen._template):
                get_logger().info(line)
            return
        out, origins = [], []
        for index in range(len(rows)):
            made = rowwise._called(
                rows,
                lambda row: chosen.batch_encode([row], add_generation_prompt=add_generation_prompt),
                rows.row(index),
                index,
            )
            made = [row for row in made if row is not None and _encoded(row)]
            out += made
            origins += [index] * len(made)
        self._set_encoded(rows, rows.replaced(out, origins))

    def _set_encoded(self, rows, encoded):
        require(
            len(encoded) > 0,
            f"dataset: none of the {len(rows)} rows encodes to a token: check the messages of "
            f"the first, {rows.where(0)}",
        )
        self._set_rows(encoded)

    @at_once
    def check(self, **kwargs):
        """Drops the rows that the template cannot encode. kwargs: as encode's. InvalidError: no
        template, no row that it can encode, several sources that are not mixed, an unknown
        argument; what a template in Python raises of a row, with its file and line. The dataset
        then stays as it was."""
        refuse_unknown("dataset: check", kwargs, ("batched", "batch_size", *_INERT))
        rows, chosen = self._rows, self._require_template("check")
        if _is_core_template(chosen):
            kept = rows.check(chosen._template)
            rowwise.require_rows(len(kept), rows, "check")
            self._set_rows(kept)
        else:
            self._set_rows(rowwise.filter_rows(rows, passing(chosen)))

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
        rows = self._rows
        found = any(column in rows.row(index) for index in range(len(rows)))
        require(found, f"dataset: no row has a field {column!r}")

    @of_one
    def save_as(self, path, format=None, batch_size=1000, mode="immediate"):
        """Writes the rows as jsonl, json, csv or parquet (format, else the path's extension), whole
        or not at all. Nested values are JSON in a CSV's cells.

        mode='training': writes the rows that are read from now on, by index or in a loop, until
        flush_save. batch_size: rows written at a time, and of a row group.
        InvalidError: another format or mode, a row that the format cannot hold, a path that cannot
        be written; no file is left then.
        """
        checks.integer("dataset: batch_size", batch_size, least=1)
        checks.text("dataset: format", format, none=True, empty=True)
        path = checks.path("dataset: path", path)
        require(
            mode in ("immediate", "training"),
            f"dataset: mode is {mode!r}, it must be 'immediate' or 'training'",
        )
        format = recorder.format_of(path, format)
        if mode == "immediate":
            rows = self._rows
            recorder.place_of(path)
            recorder.write(rows, path, format, batch_size)
            return
        require(
            self._recorder is None,
            "dataset: rows are being saved to another file: call flush_save() first",
        )
        recorder.place_of(path)
        self._recorder = recorder.Recorder(path, format, batch_size)

    @at_once
    def flush_save(self):
        """Ends save_as(mode='training'): its file is there now. Without one it does nothing."""
        if self._recorder is not None:
            writing, self._recorder = self._recorder, None
            writing.close()

    def _read_row(self, rows, index):
        row = rows.row(index)
        if self._recorder is not None:
            self._recorder.add(row)
        return row

    def _require_template(self, what):
        require(self.template is not None, f"dataset: {what} needs a template: call set_template()")
        return self.template

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
        rows = self._rows
        if isinstance(index, slice):
            return map_row_to_col(
                [self._read_row(rows, i) for i in range(*index.indices(len(rows)))]
            )
        if isinstance(index, str):
            column = [row.get(index, _MISSING) for row in rows.rows(0, len(rows))]
            if all(cell is _MISSING for cell in column):
                raise KeyError(f"dataset: no row has a field {index!r}")
            return [None if cell is _MISSING else cell for cell in column]
        index = checks.integer("dataset: index", index)
        if not -len(rows) <= index < len(rows):
            raise IndexError(f"dataset: row {index} is outside the dataset of {len(rows)} rows")
        return self._read_row(rows, index)

    @of_one
    def __iter__(self):
        rows = self._rows
        return (self._read_row(rows, index) for index in range(len(rows)))


_MISSING = object()


def _construct(value, base, init_args):
    """A Preprocessor or Filter from what users pass; functions stay what they are."""
    init_args = checks.mapping("dataset: init_args", init_args, none=True)
    if callable(value) and not inspect.isclass(value) and not isinstance(value, base):
        require(
            not init_args,
            f"dataset: {rowwise._name(value)} is a function, it cannot take init_args",
        )
        return value
    if inspect.isclass(value) and not issubclass(value, base):
        raise InvalidError(f"dataset: {value.__name__} must be a subclass of {base.__name__}")
    return construct_class(value, base, preprocessor, **init_args)


def _check_filter(kwargs):
    refuse_unknown("dataset: filter", kwargs, ("batched", *_INERT))
    require(not kwargs.get("batched"), "dataset: filter takes a row at a time, not batched=True")


def passing(chosen):
    """A filter of the rows that a template can encode."""

    def check(row):
        return chosen.check(row) is not None

    return check


def _is_core_template(chosen):
    """True when nothing of the Python template has been overridden that encoding would call."""
    kind, base = type(chosen), template.Template
    names = ("encode", "batch_encode", "check")
    return hasattr(chosen, "_template") and all(
        getattr(kind, name) is getattr(base, name) for name in names
    )


def _encoded(row):
    """False for a row whose tokens are none."""
    return "input_ids" not in row or len(row["input_ids"]) > 0
