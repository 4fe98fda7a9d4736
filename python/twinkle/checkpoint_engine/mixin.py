"""CheckpointEngineMixin: what models and samplers do, rank by rank, to send and receive weights."""

from contextlib import contextmanager

from twinkle import checks
from twinkle.checkpoint_engine.base import CheckpointEngineRegistry
from twinkle.errors import require
from twinkle.remote.decorate import remote_function


def _each_its_rank(workers, index, args, kwargs, device_mesh=None):
    """The workers' ranks follow the first one's, which is what the driver gives."""
    del workers, device_mesh
    return args, {**kwargs, "rank": kwargs["rank"] + index}


class CheckpointEngineMixin:
    """On every rank of a model and of its sampler, in processes of their own:

    address = model.prepare_checkpoint_engine()          # the model's first rank; told to all
    each.init_checkpoint_process_group(address, rank, world_size, num_senders)
    model.send_weights(), sampler.receive_weights()      # at the same time, as often as needed
    each.finalize_checkpoint_engine()

    Ranks count from 0 over the model's, num_senders of them, and then the sampler's. Where they
    live in the workers of Ray's groups, CheckpointEngineManager calls these.
    """

    _checkpoint_engine = None

    @remote_function(dispatch="all", execute="first", collect="first", lazy_collect=False)
    def prepare_checkpoint_engine(self, backend="gloo", **options):
        """The address that the others need. backend: a name of CheckpointEngineRegistry; options:
        its own, such as bucket_bytes."""
        self.finalize_checkpoint_engine()
        self._checkpoint_engine = CheckpointEngineRegistry.new(backend, **options)
        return self._checkpoint_engine.prepare()

    @remote_function(dispatch=_each_its_rank, lazy_collect=True)
    def init_checkpoint_process_group(
        self, address, rank, world_size, num_senders, backend="gloo", **options
    ):
        """Waits for the other ranks. backend, options: as prepare_checkpoint_engine's, where this
        rank has not called that. Errors as of the backend's init_process_group."""
        if self._checkpoint_engine is None:
            self._checkpoint_engine = CheckpointEngineRegistry.new(backend, **options)
        self._checkpoint_engine.init_process_group(address, rank, world_size, num_senders)

    @remote_function(dispatch="all", collect="first", lazy_collect=False)
    def finalize_checkpoint_engine(self):
        """Leaves the group. Nothing if there is none."""
        engine, self._checkpoint_engine = self._checkpoint_engine, None
        if engine is not None:
            engine.finalize()
            self._has_left()

    def _has_left(self):
        """A subclass: what the meeting has made is nobody's now."""

    @contextmanager
    def _meeting(self, method):
        """In its block: the method of this rank's engine. Where the block fails before it has
        called that, the rank leaves, so that those who wait for it are told."""
        engine, begun = self._checkpoint_engine, []

        def call(*given):
            require(
                engine is not None,
                f"checkpoint_engine: {method} needs init_checkpoint_process_group before it, or "
                "CheckpointEngineManager(model=, sampler=).sync_weights()",
            )
            begun.append(True)
            return getattr(engine, method)(*given)

        try:
            yield call
        except BaseException:
            if engine is not None and not begun:
                engine.finalize()
            raise


class SendsWeights(CheckpointEngineMixin):
    """A model's side."""

    @remote_function(dispatch="all", lazy_collect=True)
    def send_weights(
        self, adapter_name=None, base_sync_done=False, merge_and_sync=True, model_keys=None
    ):
        """Sends the adapter, or, of a model that trains them, all weights, to the ranks that
        receive. base_sync_done: without effect, since the base models are compared; merge_and_sync:
        either way, adapters are never merged. Returns a dict: num_bytes, has_base, adapter_name.
        InvalidError: a sampler of another model, with the first tensor that differs, a model_keys,
        which would send a part; InternalError: a rank that has gone."""
        with self._meeting("send_weights") as send:
            checks.flag("checkpoint_engine: base_sync_done", base_sync_done)
            checks.flag("checkpoint_engine: merge_and_sync", merge_and_sync)
            require(
                model_keys is None,
                f"checkpoint_engine: model_keys is {model_keys!r}: what has changed is sent, leave "
                "it out",
            )
            return self._send_by(send, adapter_name)

    def _send_by(self, send, adapter_name=None):
        """send: takes the compiled engine, the tenant and the adapter's name."""
        group = self._group(adapter_name)
        return send(self.engine, self._tenant(group, training=False), group.name)


class ReceivesWeights(CheckpointEngineMixin):
    """A sampler's side: a subclass defines _receive_by."""

    @remote_function(dispatch="all", lazy_collect=True)
    def receive_weights(self):
        """Takes what the model's ranks send, and samples with it from its return on. Returns a
        dict: num_bytes, has_base, adapter_name. Errors as of send_weights; the weights are as
        before then."""
        with self._meeting("receive_weights") as receive:
            return self._receive_by(receive, meets=True)

    def _receive_by(self, receive, meets=False):
        """receive: takes the compiled engine and its tenant of the base model as it is, and gives
        the tenant that samples from now on."""
        raise NotImplementedError(f"{type(self).__name__} does not define _receive_by")
