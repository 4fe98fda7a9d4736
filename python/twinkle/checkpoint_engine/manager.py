"""CheckpointEngineManager: that a sampler has its model's newest weights."""

import threading
import weakref
from contextlib import ExitStack

from twinkle import checks
from twinkle.checkpoint_engine.gloo import bucket_size
from twinkle.checkpoint_engine.mixin import ReceivesWeights, SendsWeights
from twinkle.core import core
from twinkle.engine.group import timeout_seconds
from twinkle.errors import NotAvailableError
from twinkle.infra import current_run
from twinkle.remote import remote_class, remote_function
from twinkle.remote.group import settled
from twinkle.remote.proxy import Proxy

_turns = (
    weakref.WeakKeyDictionary()
)  # {WorkerGroup: Lock}: its ranks sync for one manager at a time
_met = weakref.WeakKeyDictionary()  # {Proxy: _ends of the manager for which its ranks met last}


@remote_class(execute="all", listed=False)
class CheckpointEngineManager:
    """For a model and its sampler: TorchSampler(model=model), which shares its engine, or
    TorchSampler(model_id=...), which gets the weights by sync_weights. Both are of this process, or
    both of Ray's groups, of one or of two.

    platform: 'GPU', or None; without effect: weights travel through the memory of CPUs.
    bucket_bytes: of one message, a number or a text such as '64MiB' (the default). InvalidError: no
    TransformersModel, no sampler that can receive, one of both in workers and the other not, no
    size; NotAvailableError: another platform.
    """

    def __init__(self, model, sampler, platform="GPU", bucket_bytes=None):
        if not isinstance(model, SendsWeights):
            checks.refuse("checkpoint_engine: model", model, "a TransformersModel")
        if not isinstance(sampler, ReceivesWeights):
            checks.refuse("checkpoint_engine: sampler", sampler, "a TorchSampler or vLLMSampler")
        if platform not in ("GPU", None):
            raise NotAvailableError(
                f"checkpoint_engine: platform is {platform!r}, in this version it is 'GPU', or None"
            )
        self._model, self._sampler = model, sampler
        self._bucket_bytes = bucket_size(bucket_bytes)
        self._ends = None  # how weights get there, once it is known
        # No bound method of its own is kept: the model would end with the collector of garbage.
        self._there = None  # a manager in the workers that have both
        self._in_workers = _is_remote(model) or _is_remote(sampler)
        if self._in_workers:
            self._check_workers()
            if model.group is sampler.group:
                # One process has both: it does as a process alone does.
                given = (model, sampler, platform, self._bucket_bytes)
                self._there = current_run().made_in_workers(
                    CheckpointEngineManager, model.group.name, given, {}
                )

    def _check_workers(self):
        for what, each in (("model", self._model), ("sampler", self._sampler)):
            if not _is_remote(each):
                checks.refuse(
                    f"checkpoint_engine: {what}", each, "in the workers of a group, as the other is"
                )

    @remote_function(dispatch="all", collect="first", lazy_collect=False)
    def sync_weights(self, merge_and_sync=True):
        """From its return on the sampler's tokens are of the model's weights after the last step.
        Samples that have begun end with the weights that they began with.

        An adapter goes by itself where both have one base model, which is compared at the first
        sync; else the base model's weights go first, once. Of a model that trains all weights all
        go. merge_and_sync: either way; the sampler adds the adapter as the model does, and nothing
        is merged: that would round the base model's weights. InvalidError: merge_and_sync is
        neither True nor False, a sampler of another model, with the first tensor that differs;
        InternalError: a rank that has gone. The sampler's weights are as before then."""
        checks.flag("checkpoint_engine: merge_and_sync", merge_and_sync)
        try:
            self._sync()
        except BaseException:
            self._ends = None  # the next sync meets anew: these may be closed
            raise

    def _sync(self):
        if self._there is not None:
            self._there.sync_weights()
        elif self._in_workers:
            self._sync_groups()
        else:
            self._sync_here()

    def _sync_here(self):
        if self._sampler.engine is self._model.engine:
            return
        if self._ends is None:
            self._ends = core().SyncLink.pair(self._bucket_bytes, timeout_seconds())
        sender, receiver = self._ends
        _both(
            lambda: self._model._send_by(sender.send),
            lambda: self._sampler._receive_by(receiver.receive),
            (sender, receiver),
        )

    def _sync_groups(self):
        """One sync of a group at a time: a model's ranks meet one sampler's."""
        both = (self._model, self._sampler)
        with ExitStack() as held:
            for group in sorted({each.group for each in both}, key=lambda group: group.name):
                held.enter_context(_turns.setdefault(group, threading.Lock()))
            groups = [each.group for each in both]
            if self._ends is None or any(_met.get(each) is not self._ends for each in both):
                self._meet(*both)
            # A worker skips what was sent behind a call that fails, and the other side would wait.
            with settled(*groups):
                results = self._model.send_weights(), self._sampler.receive_weights()
            _all_of(*results)

    def _meet(self, model, sampler):
        for each in (model, sampler):
            _met.pop(each, None)
            each.group.settle()
        options = {"bucket_bytes": self._bucket_bytes}
        address = model.prepare_checkpoint_engine(**options)
        sampler.finalize_checkpoint_engine()
        senders = model.group.size
        meet = {
            "address": address,
            "world_size": senders + sampler.group.size,
            "num_senders": senders,
            **options,
        }
        with settled(model.group, sampler.group):
            results = (
                model.init_checkpoint_process_group(rank=0, **meet),
                sampler.init_checkpoint_process_group(rank=senders, **meet),
            )
        _all_of(*results)
        self._ends = object()
        for each in (model, sampler):
            _met[each] = self._ends


def _is_remote(one):
    return type(one) is Proxy


def _raise_of(errors):
    """Raises one of them, if any: a rank's own tells more than another's of having been told. The
    list is emptied: tracebacks have the frames that have it, and these the model."""
    try:
        if errors:
            raise min(errors, key=lambda error: str(error).startswith("sync: rank "))
    finally:
        errors.clear()


def _all_of(*results):
    """Waits for calls of groups that wait for each other. Raises what one of them has raised."""
    errors = []
    for result in results:
        try:
            result()
        except Exception as error:
            errors.append(error)
    _raise_of(errors)


def _both(send, receive, ends):
    """Calls both, which wait for each other, one in a thread of its own."""
    errors = []

    def call(function, end):
        try:
            function()
        except BaseException as error:
            errors.append(error)
            end.close(f"sync: rank {ends.index(end)}: {error}")

    thread = threading.Thread(target=call, args=(send, ends[0]), name="twinkle-sync", daemon=True)
    thread.start()
    call(receive, ends[1])
    thread.join()
    _raise_of(errors)
