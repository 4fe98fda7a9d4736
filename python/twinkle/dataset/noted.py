"""The base of LazyDataset and IterableDataset: work on rows is noted, and done later."""

from twinkle import checks
from twinkle.dataset import rowwise
from twinkle.dataset.dataset import _INERT, Dataset, _construct
from twinkle.errors import refuse_unknown, require
from twinkle.preprocessor import Preprocessor


class NotedDataset(Dataset):
    """A Dataset whose sources are read after all work on them is noted; see its two kinds."""

    def __init__(self, dataset_meta=None, **kwargs):
        self._work = {}  # source: what is done to each of its rows, in order
        self._all_work = []  # every row after those
        self._order = None  # order of the sources; None: not mixed
        super().__init__(dataset_meta, **kwargs)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(self._sources) or 'no source'})"

    def mix_dataset(self, interleave=True):
        """Notes in which order rows of all sources come: one of each in turn, or one source after
        the other. InvalidError: there is no source, or interleave is neither True nor False."""
        interleave = checks.flag("dataset: interleave", interleave)
        require(bool(self._sources), "dataset: there is nothing to mix: add_dataset comes first")
        self._order = "interleave" if interleave else "concat"

    def _key(self, dataset_meta, what):
        require(self._order is None, f"dataset: {what} must come before mix_dataset")
        return super()._key(dataset_meta, what)

    def map(self, preprocess_func, dataset_meta=None, init_args=None, **kwargs):
        """Notes a preprocessor, as Dataset.map takes it; it gets one row at a time. InvalidError:
        as there, but remove_columns is unknown here; what the preprocessor raises or wrongly
        returns comes when a row is read."""
        refuse_unknown("dataset: map", kwargs, ("batched", "batch_size", *_INERT))
        batched = checks.flag("dataset: batched", kwargs.get("batched", True))
        key = self._key(dataset_meta, "map")
        work = _construct(preprocess_func, Preprocessor, init_args)
        self._note(key, self._mapped(OneRow(work, batched or isinstance(work, Preprocessor))))

    def _mapped(self, work):
        """A OneRow as the kind of work that this data set keeps."""
        return work

    def _note(self, key, work):
        self._work.setdefault(key, []).append(work)


class OneRow:
    """A preprocessor as a function from row to row."""

    def __init__(self, work, batched):
        self._work, self._batched = work, batched
        self.__name__ = rowwise._name(work)

    def __call__(self, row):
        """The row (a dict) with the preprocessor's fields. InvalidError: it gave not one row."""
        made = self._work({k: [v] for k, v in row.items()} if self._batched else row)
        if self._batched and isinstance(made, dict):
            made = Preprocessor.map_col_to_row(made)
        made = made if self._batched else [made]
        right = isinstance(made, list) and len(made) == 1 and isinstance(made[0], dict)
        require(right, "it must return one row for one row")
        return {**row, **made[0]}
