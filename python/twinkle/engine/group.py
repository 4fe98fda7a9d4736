"""The process groups that the ranks of a mesh talk through."""

import functools
import itertools
import os
from contextlib import contextmanager
from datetime import timedelta

from twinkle.core import core
from twinkle.errors import InvalidError, NotAvailableError, require
from twinkle.platform import Platform, find_node_ip, timeout_seconds

_ENGINE = ("door", "control", "data", "saves")  # one for each thread of an engine that talks
_numbers = itertools.count(1)
# A watch sees that a rank has gone; one that lives may take as long as it likes.
_FOREVER = timedelta(days=20)
# At the first meeting nobody knows yet whether a rank lives: it has come by then, or is taken for
# lost. Launchers start ranks at once; the seconds are for machines that take long to begin.
_FIRST_MEETING_S = 30.0
# From then on a watch tells who has gone, and ranks that read models or data may be late by so many
# timeouts.
_LATER_MEETINGS = 10
_SAME_ORDER = "every rank must make the same objects in the same order"
_NO_SIGN = (
    "their processes have ended, or do something else first: every rank must call initialize() "
    "with the mesh where its script begins"
)


@contextmanager
def engine_group(mesh, watch):
    """In its block: what the compiled engine takes as its `group`, for a mesh of several ranks;
    None: one rank. watch: of the ranks, as ranks_of gives it. The engine finds the groups by their
    names, and is their holder from then on.

    Waits until every rank of the mesh has called it, each as its how manieth. Makes groups of its
    own, with Gloo, beside those of torch.distributed. InvalidError: the process was not started by
    torchrun, which sets MASTER_ADDR and MASTER_PORT; NotAvailableError: a torch without Gloo, or a
    rank that has not come in time; InternalError: one has gone, or its script has ended.
    """
    if mesh is None or mesh.world_size == 1:
        yield None
        return
    number, shared = next(_numbers), mesh.fsdp_world_size or 1
    places = {f"{number}/{what}": None for what in _ENGINE}
    if shared > 1:  # by the ranks along fsdp, which have the base's weights together
        places[f"{number}/base-{mesh.dp_rank or 0}"] = (mesh.fsdp_rank, shared)
    with open_groups(mesh, places, watch) as names:
        door, control, data, saves, *base = names
        yield door, control, data, saves, watch, base[0] if base else None


@contextmanager
def open_groups(mesh, places, watch):
    """In its block: the names by which C++ finds one group for each of `places`, {name: (index,
    size) of this rank in it, or None: of all data ranks of a mesh of several}. Who takes them over
    is their holder from then on. Waits and raises as engine_group does. watch: of the ranks."""
    ranks, held = _met(mesh, next(iter(places)), watch), {}
    for name, place in places.items():
        key = _key(name)
        index, size = place or (mesh.data_rank, mesh.data_world_size)
        try:
            held[key] = process_group(key, key, _store(), (index, size, timeout_seconds()))
        except (RuntimeError, OSError) as error:
            ranks.refuse(str(error), watch)
    yield list(held)
    held.clear()  # a group ends, and the other ranks hear of it, with its last holder


def watch_of(mesh, name):
    """A Watch of the data ranks of a mesh of several, which has a connection of each to the first.
    Waits and raises as engine_group does."""
    # Other ranks reach this machine as they reach the store, or, where it is another, from outside.
    return _met(mesh, name, None).watch(_key(name), [os.environ["MASTER_ADDR"], find_node_ip()])


def _met(mesh, name, watch):
    """The Rendezvous of a mesh's data ranks, all of which have come to `name`."""
    rank, size, timeout = mesh.data_rank, mesh.data_world_size, timeout_seconds()
    require(rank is not None, "infra: device_mesh does not hold this process's rank")
    failure = f"infra: rank {rank} could not meet the other ranks of a mesh of {size}"
    ranks = core().Rendezvous(_store(), failure, rank, size, timeout)
    ranks.meet(_key(name), *_patience(watch), watch)
    return ranks


def _key(name):
    """A name in the store and in C++. A restart by torchrun must not meet the keys of the run
    before."""
    return f"twinkle/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"


def _patience(watch=None):
    """(seconds that ranks may take to a meeting, why one has not come by then)."""
    if watch is None and os.environ.get("TWINKLE_MODE") != "ray":
        return max(timeout_seconds(), _FIRST_MEETING_S), _NO_SIGN
    # Ray's workers meet when they make an engine, whose data some read for longer than others.
    return _LATER_MEETINGS * timeout_seconds(), _SAME_ORDER


def _store():
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        require(
            os.environ.get(name),
            f"infra: {name} is not set, but the mesh has several ranks: start it with torchrun",
        )
    return _store_at(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])


@functools.cache  # the first rank's is the store itself, which has to stay
def _store_at(host, port):
    import torch.distributed as dist

    require_gloo()
    agent_has_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = dist.TCPStore(
            host,
            int(port),
            is_master=Platform.get_rank() == 0 and not agent_has_it,
            timeout=timedelta(seconds=_patience()[0]),
            wait_for_workers=False,
            multi_tenant=True,  # torch.distributed may have opened it in this process, or will
        )
        store.set_timeout(timedelta(seconds=_LATER_MEETINGS * timeout_seconds()))
        return store
    except (RuntimeError, ValueError) as error:
        raise InvalidError(
            f"infra: MASTER_ADDR and MASTER_PORT say {host}:{port}, no store answers: {error}"
        ) from error


def require_gloo():
    """NotAvailableError: a torch without Gloo."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        raise NotAvailableError("infra: this torch has no Gloo, through which ranks on CPUs talk")


def process_group(name, keys, store, place):
    """A group of Gloo, registered under `name` for the compiled engine; it ends with its last
    holder. keys: what its keys in the store begin with, the same on all ranks. place: (index, size,
    seconds that a rank waits for another here). RuntimeError: another has not come in time."""
    import torch
    import torch.distributed as dist

    index, size, timeout = place
    gloo = dist.ProcessGroup.BackendType.GLOO
    own = dist.PrefixStore(keys, store)
    group = dist.ProcessGroup(own, index, size)
    backend = dist.ProcessGroupGloo(
        dist.PrefixStore("cpu", own), index, size, timedelta(seconds=timeout)
    )
    group._register_backend(torch.device("cpu"), gloo, backend)
    group._set_default_backend(gloo)
    group._set_group_name(name)
    group.set_timeout(_FOREVER)  # from here on
    torch._C._distributed_c10d._register_process_group(name, group)
    return group
