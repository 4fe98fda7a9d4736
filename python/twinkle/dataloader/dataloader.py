"""DataLoader. Which rows come next, and what a batch may be, is the C++ core's to say."""

import reprlib

from twinkle import checks, processor
from twinkle.core import core
from twinkle.errors import NoLengthError, refuse_unknown, require
from twinkle.infra import check_world, current_run, group_of
from twinkle.logger import get_logger
from twinkle.plugin import construct_class
from twinkle.remote.decorate import remote_class
from twinkle.remote.how import at_once
from twinkle.without_effect import WITHOUT_EFFECT

_INT64_MAX = 2**63 - 1
_SHORT = reprlib.Repr()  # for rows, which may be millions
_SHORT.maxother = 200


@remote_class(execute="all", listed=False)
class DataLoader:
    """Yields lists of dicts, each row read once.

    dataset: a Dataset, anything with len and [index], an IterableDataset or another iterable that
    can be read repeatedly, or a callable that makes one.
    batch_size: rows over all data ranks of device_mesh, or else of initialize's, or of the only
    group of workers; each rank gets its slice.
    min_batch_size: a smaller last batch is dropped (None: the number of data ranks, each of which
    needs a row; the log says how many rows an epoch then lacks that one process would read).
    shuffle, seed: a different order every epoch, the same on every machine. drop_last: like
    min_batch_size=batch_size. collate_fn: called with the list of rows; its result is yielded.
    max_retries and torch's options for workers are accepted without effect: rows are in memory, and
    bad rows have been refused, with their lines, before training.
    InvalidError: an unknown argument, a value of another kind, a number outside its limits, a
    batch_size that the number of data ranks does not divide, a min_batch_size above batch_size or
    below the number of data ranks, shuffle=True of a stream, a device_mesh of another number of
    ranks than processes are running, a remote_group that initialize was not given; a dataset
    without rows (a stream's is found when it is read).
    """

    def __init__(
        self,
        dataset,
        *,
        batch_size,
        min_batch_size=None,
        device_mesh=None,
        max_retries=20,
        remote_group=None,
        shuffle=False,
        seed=0,
        drop_last=False,
        collate_fn=None,
        **kwargs,
    ):
        refuse_unknown("dataloader: DataLoader", kwargs, WITHOUT_EFFECT["DataLoader"])
        if callable(dataset) and not hasattr(dataset, "__getitem__"):
            dataset = dataset()
        indexed = all(getattr(dataset, name, None) for name in ("__len__", "__getitem__"))
        require(
            (indexed or hasattr(dataset, "__iter__"))
            and not isinstance(dataset, (str, bytes, dict, type)),
            f"dataloader: dataset is a {type(dataset).__name__}, it must be a Dataset or a "
            "callable that makes one",
        )
        batch_size = checks.integer("dataloader: batch_size", batch_size, 1, _INT64_MAX)
        what = "dataloader: min_batch_size"
        least = checks.integer(what, min_batch_size, 1, _INT64_MAX, none=True)
        self.max_retries = checks.integer("dataloader: max_retries", max_retries, least=0)
        seed = checks.integer("dataloader: seed", seed, 0, 2**64 - 1)
        shuffle = checks.flag("dataloader: shuffle", shuffle)
        if checks.flag("dataloader: drop_last", drop_last):
            least = batch_size
        if collate_fn is not None and not callable(collate_fn):
            checks.refuse("dataloader: collate_fn", collate_fn, "callable")
        group_of(remote_group, "a DataLoader")
        place = _place(device_mesh)
        require(indexed or not shuffle, "dataloader: shuffle is True, but the dataset is a stream")
        options = core().LoaderOptions(
            batch_size=batch_size, min_batch_size=least or 0, shuffle=shuffle, seed=seed, **place
        )
        self.dataset, self.batch_size = dataset, batch_size
        self.device_mesh, self.remote_group = device_mesh, remote_group
        self._indexed, self._collate = indexed, collate_fn
        self._epoch, self._loop = 0, None  # the loop that is on
        if indexed:
            self._loader = core().Loader(len(dataset), options)
            log = get_logger()
            self._tell(log.warning_once if len(self._loader) > 0 else log.warning)
        else:
            self._loader = core().StreamLoader(dataset, options)

    def __repr__(self):
        count = f", {len(self)} batches" if self._indexed else ""
        return f"DataLoader({_SHORT.repr(self.dataset)}, batch_size={self.batch_size}{count})"

    def __len__(self):
        """Batches of the epoch; without those that skip_consumed_samples leaves out.
        NoLengthError: the dataset is a stream."""
        if not self._indexed:
            raise NoLengthError("dataloader: the dataset is a stream, whose length is not known")
        return len(self._loader)

    def __iter__(self):
        """Begins the next epoch: batches of this data rank, as lists of dicts, or as collate_fn
        returns them. A loop over the previous epoch raises InvalidError from here on."""
        epoch = self._epoch
        self._epoch += 1
        self._loader.start(epoch)
        self._loop = loop = object()
        return self._batches(loop)

    def _batches(self, loop):
        while True:
            require(
                loop is self._loop,
                "dataloader: this epoch ended when another one was started, or by "
                "skip_consumed_samples",
            )
            batch = self._loader.next()
            if not batch:
                break
            if self._indexed:
                batch = [self.dataset[index] for index in batch]
            yield self._collate(batch) if self._collate else batch
        if not self._indexed:
            self._tell(get_logger().warning_once)

    def _tell(self, log):
        if self._loader.remark:
            log(f"dataloader: {self._loader.remark}")

    @at_once
    def set_processor(self, processor_cls, **kwargs):
        """Sets the InputProcessor (or its class or name) that turns rows into the yielded batch."""
        self._collate = construct_class(
            processor_cls, processor.InputProcessor, processor, **kwargs
        )

    @at_once
    def skip_consumed_samples(self, consumed_train_samples):
        """The next epoch begins after these rows, which are not read again; those of a stream are
        read and discarded. InvalidError: no integer from 0 to 2^63 - 1."""
        what = "dataloader: consumed_train_samples"
        self._loader.skip(checks.integer(what, consumed_train_samples, 0, _INT64_MAX))
        self._epoch, self._loop = 0, None

    resume_from_checkpoint = skip_consumed_samples  # the name that goes with a model's method

    @at_once
    def get_state(self):
        """{'consumed_train_samples': rows over all ranks, for skip_consumed_samples}."""
        return {"consumed_train_samples": self._loader.consumed}


def _place(device_mesh):
    """LoaderOptions of this process: of initialize's mesh where None is given; in the driver of one
    group without any, of that group's, which is all its ranks along dp."""
    run = current_run()
    device_mesh = run.mesh if device_mesh is None else device_mesh
    if run.cluster is not None:  # the driver has the whole batches, which calls cut for workers
        ranks = run.groups[0].num_ranks if len(run.groups) == 1 else 1
        ranks = ranks if device_mesh is None else device_mesh.data_world_size
        return {"data_rank_and_world": (0, ranks), "whole_batch": True}
    if device_mesh is None:
        return {"data_rank_and_world": (0, 1)}
    check_world(device_mesh, "device_mesh of a DataLoader")
    rank = device_mesh.data_rank
    require(rank is not None, "dataloader: device_mesh does not hold this process's rank")
    return {"data_rank_and_world": (rank, device_mesh.data_world_size)}
