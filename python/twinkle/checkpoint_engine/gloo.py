"""GlooCheckpointEngine: weights over a Gloo group of their own, in buckets, by twinkle/sync."""

import os
import re
import weakref
from contextlib import contextmanager
from datetime import timedelta

from twinkle import checks
from twinkle.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from twinkle.core import core
from twinkle.engine.group import process_group, require_gloo
from twinkle.engine.ranks import tell_end, waits_at
from twinkle.errors import InternalError, NotAvailableError, require
from twinkle.platform import find_node_ip, timeout_seconds

BUCKET_BYTES = 64 << 20


def bucket_size(value):
    """Bytes of a message from a number or a text such as '64MiB'; None: 64 MiB. InvalidError: no
    size."""
    return checks.file_size("checkpoint_engine: bucket_bytes", value) or BUCKET_BYTES


class GlooCheckpointEngine(CheckpointEngine):
    """bucket_bytes: of one message, a number or a text such as '64MiB'; two are on their way at a
    time. host: the name or address under which the other ranks reach rank 0's machine; None:
    MASTER_ADDR, which torchrun and Ray's workers have, else 127.0.0.1. A rank that is silent for
    TWINKLE_DIST_TIMEOUT_SECONDS is taken for lost. InvalidError: a bucket_bytes that is no size.
    """

    def __init__(self, bucket_bytes=None, host=None):
        self._bucket_bytes = bucket_size(bucket_bytes)
        host = os.environ.get("MASTER_ADDR", "127.0.0.1") if host is None else host
        self._host = checks.text("checkpoint_engine: host", host)
        self._store = self._held = self._link = self._watch = self._at_end = None
        self._rank = self._size = 0

    def prepare(self):
        """'HOST:PORT' of the store through which the ranks meet. NotAvailableError: a torch without
        Gloo, or no port."""
        require_gloo()
        self._store = _store(self._host, 0, timeout_seconds(), is_master=True)
        return f"{self._host}:{self._store.port}"

    def init_process_group(self, address, rank, world_size, num_senders):
        """InvalidError: an address that is none, a rank outside the group, nobody to send or to
        receive; NotAvailableError: another rank has not come in time."""
        host, port = _parts(address)
        checks.integer("checkpoint_engine: world_size", world_size, least=2)
        checks.integer("checkpoint_engine: rank", rank, 0, world_size - 1)
        checks.integer("checkpoint_engine: num_senders", num_senders, 1, world_size - 1)
        require_gloo()
        require(
            rank > 0 or self._store is not None,
            "checkpoint_engine: rank 0 has not called prepare, by which the others find it",
        )
        self._leave()
        timeout = timeout_seconds()
        name = f"twinkle/sync/{address}/{rank}"
        store = _store(host, port, timeout, is_master=False) if rank > 0 else self._store
        text = f"checkpoint_engine: rank {rank} of {world_size} could not meet the others at "
        ranks = core().Rendezvous(store, text + address, rank, world_size, timeout)
        try:
            group = process_group(name, "twinkle/sync", store, (rank, world_size, timeout))
        except (RuntimeError, OSError) as error:
            ranks.refuse(str(error), None)
        self._watch = ranks.watch("twinkle/sync/watch", [self._host, find_node_ip()])
        self._link = core().SyncLink(name, self._watch, num_senders, self._bucket_bytes)
        self._at_end = weakref.finalize(self, tell_end, self._watch, rank)  # the script's, too
        self._rank, self._size = rank, world_size
        self._store, self._held = None, store  # its keys are of this meeting
        del group  # the link is its holder from here on

    def send_weights(self, engine, tenant, name=""):
        """InvalidError: a sampler of another model, with the first tensor that differs;
        InternalError: a rank that has gone, by its number, or what one of them has refused."""
        with self._sync("send_weights") as link:
            return link.send(engine, tenant, name)

    def receive_weights(self, engine, frozen):
        """Errors as of send_weights."""
        with self._sync("receive_weights") as link:
            return link.receive(engine, frozen)

    @contextmanager
    def _sync(self, what):
        """In its block this rank waits for the others by its link, and warns of who is late. Gloo's
        errors, which tell of a connection, become those of a rank. What a rank has told of itself
        (sync: rank ...) stays."""
        require(
            self._link is not None,
            "checkpoint_engine: the ranks have not met: call init_process_group first",
        )
        watch = self._watch
        try:
            with waits_at(watch, "a sync of weights"):
                yield self._link
        except InternalError as error:
            is_told = re.match(r"sync: rank \d+( \(the \w+\))?: ", str(error))
            why = "" if is_told else watch.why_after("", "")  # it hears of it soon after
            if not why:
                raise
            what = f"checkpoint_engine: {what} of rank {self._rank} of {self._size}"
            raise InternalError(f"{what}: {why}") from error

    def finalize(self):
        """Closes the group and, on rank 0, the store."""
        self._leave()
        self._store = self._held = None

    def _leave(self):
        if self._link is not None:
            self._watch.fail("", f"checkpoint_engine: rank {self._rank} has left the others")
            self._link.close("sync: a rank has left")
            self._at_end.detach()
        self._link = self._watch = self._at_end = None


def _parts(address):
    host, _, port = checks.text("checkpoint_engine: address", address).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        checks.refuse("checkpoint_engine: address", address, "'HOST:PORT', as prepare gives it")
    return host, int(port)


def _store(host, port, timeout, is_master):
    import torch.distributed as dist

    options = {"timeout": timedelta(seconds=timeout), "wait_for_workers": False}
    try:
        return dist.TCPStore(host, port, is_master=is_master, **options)
    except (RuntimeError, ValueError) as error:
        where = f"open a port on {host}" if is_master else f"reach {host}:{port}"
        raise NotAvailableError(f"checkpoint_engine: cannot {where}: {error}") from error


CheckpointEngineRegistry.register("gloo", GlooCheckpointEngine)
