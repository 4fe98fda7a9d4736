"""CheckpointEngine: one rank's end of the way that weights take; CheckpointEngineRegistry: their
names."""

import difflib
from typing import ClassVar

from twinkle import checks
from twinkle.errors import InvalidError, NotAvailableError

_ELSEWHERE = ("nccl", "hccl")  # ModelScope's, from device to device


class CheckpointEngine:
    """Base of the ways by which a model's ranks send weights to a sampler's. A subclass defines
    prepare, init_process_group, send_weights, receive_weights and finalize, and is registered by a
    name: CheckpointEngineRegistry.register("mine", Mine).

    All ranks, the model's first and then the sampler's, are one group. Every rank has one, made
    with the same arguments, and calls the same methods in the same order.
    """

    def prepare(self):
        """On rank 0, before all else: a text, by which the others find it."""
        self._undefined("prepare")

    @classmethod
    def build_topology(cls, num_senders, num_receivers, address):
        """The arguments of every rank's init_process_group: a list for the model's ranks and one
        for the sampler's. InvalidError: a number of ranks below 1."""
        checks.integer("checkpoint_engine: num_senders", num_senders, least=1)
        checks.integer("checkpoint_engine: num_receivers", num_receivers, least=1)
        size = num_senders + num_receivers
        same = {"address": address, "world_size": size, "num_senders": num_senders}
        every = [{"rank": rank, **same} for rank in range(size)]
        return every[:num_senders], every[num_senders:]

    def init_process_group(self, address, rank, world_size, num_senders):
        """Meets the other ranks: waits until each has called it. address: what rank 0's prepare
        gave."""
        self._undefined("init_process_group")

    def send_weights(self, engine, tenant, name=""):
        """On a rank of the model, while the sampler's ranks receive: the tenant's adapter, or,
        without one, all weights. engine: the compiled one. Returns a dict: num_bytes, has_base
        (whether all weights have travelled), adapter_name."""
        self._undefined("send_weights")

    def receive_weights(self, engine, frozen):
        """On a rank of the sampler. frozen: its engine's tenant of the base model as it is. Returns
        a dict as send_weights does, and tenant, which samples with the new weights."""
        self._undefined("receive_weights")

    def finalize(self):
        """Leaves the group: whoever waits for this rank is told. May be called twice."""
        self._undefined("finalize")

    def _undefined(self, method):
        raise NotImplementedError(f"{type(self).__name__} does not define {method}")


class CheckpointEngineRegistry:
    """CheckpointEngines by name; 'gloo' is here."""

    _classes: ClassVar = {}

    @classmethod
    def register(cls, name, engine_cls):
        """Makes a subclass of CheckpointEngine known. InvalidError: it is none, or the name is
        another class's."""
        checks.text("checkpoint_engine: name", name)
        if not (isinstance(engine_cls, type) and issubclass(engine_cls, CheckpointEngine)):
            checks.refuse("checkpoint_engine: engine_cls", engine_cls, "a CheckpointEngine's class")
        known = cls._classes.setdefault(name, engine_cls)
        if known is not engine_cls:
            raise InvalidError(f"checkpoint_engine: {name!r} is {known.__name__} already")

    @classmethod
    def get(cls, name):
        """The class of a name. InvalidError: unknown; NotAvailableError: one of ModelScope's."""
        checks.text("checkpoint_engine: name", name)
        if name in cls._classes:
            return cls._classes[name]
        names, near = ", ".join(cls._classes), difflib.get_close_matches(name, cls._classes, n=1)
        if name in _ELSEWHERE:
            text = f"checkpoint_engine: {name!r} is not in this version, which has {names}: "
            raise NotAvailableError(text + "weights travel through the memory of CPUs")
        meant = f". Did you mean {near[0]!r}?" if near else ""
        raise InvalidError(f"checkpoint_engine: there is no {name!r}, there is {names}{meant}")

    @classmethod
    def new(cls, name, **kwargs):
        """One of a name, made with kwargs."""
        return cls.get(name)(**kwargs)
