"""CheckpointEngineManager: that a sampler has its model's newest weights."""

from twinkle import checks
from twinkle.checkpoint_engine.gloo import bucket_size
from twinkle.checkpoint_engine.mixin import ReceivesWeights, SendsWeights
from twinkle.core import core
from twinkle.engine.group import timeout_seconds
from twinkle.errors import NotAvailableError
from twinkle.remote.decorate import remote_class, remote_function
from twinkle.remote.group import locked, together
from twinkle.remote.proxy import Proxy


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
        what, must = "checkpoint_engine: sampler", "a TorchSampler or vLLMSampler"
        checks.instance("checkpoint_engine: model", model, SendsWeights, "a TransformersModel")
        checks.instance(what, sampler, ReceivesWeights, must)
        if platform not in ("GPU", None):
            raise NotAvailableError(
                f"checkpoint_engine: platform is {platform!r}, in this version it is 'GPU', or None"
            )
        self._model, self._sampler = model, sampler
        self._bucket_bytes = bucket_size(bucket_bytes)
        self._ends = None  # how weights get there, once it is known
        # No bound method of its own is kept: the model would end with the collector of garbage.
        self._there = None  # a manager in the workers that have both
        self._in_workers = type(model) is Proxy
        if self._in_workers is not (type(sampler) is Proxy):
            what, each = ("sampler", sampler) if self._in_workers else ("model", model)
            must = "in the workers of a group, as the other is"
            checks.refuse(f"checkpoint_engine: {what}", each, must)
        if self._in_workers and model.group is sampler.group:
            # One process has both: it does as a process alone does.
            given = {"bucket_bytes": bucket_bytes, "remote_group": model.group.name}
            self._there = CheckpointEngineManager(model, sampler, platform, **given)

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
            self._sync_groups(self._model, self._sampler)
        elif self._sampler.engine is not self._model.engine:
            self._sync_here()

    def _sync_here(self):
        if self._ends is None:
            self._ends = core().SyncPair(self._bucket_bytes, timeout_seconds())
        sync, receive = self._ends.sync, self._sampler._receive_by
        self._model._send_by(lambda *sent: receive(lambda *frozen: sync(*sent, *frozen)))

    def _sync_groups(self, model, sampler):
        groups = model.group, sampler.group
        with locked(*groups):  # a model's ranks meet one sampler's at a time
            if self._ends is None or not (model.met_for is sampler.met_for is self._ends):
                self._meet(model, sampler, groups)
            together(groups, model.send_weights, sampler.receive_weights)

    def _meet(self, model, sampler, groups):
        model.met_for = sampler.met_for = None
        options = {"bucket_bytes": self._bucket_bytes}
        options["address"] = model.prepare_checkpoint_engine(**options)
        sampler.finalize_checkpoint_engine()
        senders = model.group.size
        options |= {"world_size": senders + sampler.group.size, "num_senders": senders}
        together(
            groups,
            lambda: model.init_checkpoint_process_group(rank=0, **options),
            lambda: sampler.init_checkpoint_process_group(rank=senders, **options),
        )
        self._ends = model.met_for = sampler.met_for = object()
