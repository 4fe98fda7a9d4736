"""The process groups that the ranks of a mesh talk through."""

import functools
import itertools
import os
import re
import secrets
import socket
import time
from contextlib import contextmanager, nullcontext
from datetime import timedelta

from twinkle.core import core
from twinkle.errors import InvalidError, NotAvailableError, TwinkleError, require
from twinkle.platform import Platform, find_node_ip, timeout_seconds

_ENGINE = ("door", "control", "data", "saves")  # one for each thread of an engine that talks
_numbers = itertools.count(1)
# A watch sees that a rank has gone; one that lives may take as long as it likes.
FOREVER = timedelta(days=20)
# At the first meeting nobody knows yet whether a rank lives: it has come by then, or is taken for
# lost. Launchers start ranks at once; the seconds are for machines that take long to begin.
_FIRST_MEETING_S = 30.0
# From then on a watch tells who has gone, and ranks that read models or data may be late by so many
# timeouts.
_LATER_MEETINGS = 10
_LOOK_S = 0.02  # between two looks for who has come
_NEWS_S = 1.0  # in which a watch hears whose end a call has failed by
_ABOUT_TO_MEET = "the making of an engine"
_SAME_ORDER = "every rank must make the same objects in the same order"
_NO_SIGN = (
    "their processes have ended, or do something else first: every rank must call initialize() "
    "with the mesh where its script begins"
)


def _first_meeting_s(timeout):
    """Ray's workers meet when they make an engine, whose data some read for longer than others."""
    if os.environ.get("TWINKLE_MODE") == "ray":
        return _LATER_MEETINGS * timeout
    return max(timeout, _FIRST_MEETING_S)


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
    place = _Place(mesh)
    place.meet(next(iter(places)), watch)
    whole = (place.index, place.size)
    held = [place.group(name, its or whole, watch) for name, its in places.items()]
    yield [place.name(name) for name in places]
    held.clear()  # a group ends, and the other ranks hear of it, with its last holder


def watch_of(mesh, name):
    """A Watch of the data ranks of a mesh of several, which has a connection of each to the first.
    Waits and raises as engine_group does."""
    place = _Place(mesh)
    place.meet(name, None)
    own = (place.index, place.size, place.timeout)
    with place.naming_failures():
        return watch_through(place._store, place.name(name), os.environ["MASTER_ADDR"], own)


class _Place:
    """This process among the ranks of a mesh, which find each other by a store."""

    def __init__(self, mesh):
        self.timeout = timeout_seconds()
        self.index, self.size = mesh.data_rank, mesh.data_world_size
        require(self.index is not None, "infra: device_mesh does not hold this process's rank")
        self._store = _store(self.timeout)

    def name(self, name):
        """As the store and C++ know it. A restart by torchrun must not meet the keys of the run
        before."""
        return f"twinkle/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}"

    @contextmanager
    def naming_failures(self, watch=None):
        """NotAvailableError, whatever the network says; InternalError: the watch knows better, that
        a rank has gone."""
        try:
            yield
        except TwinkleError:
            raise
        except (RuntimeError, OSError) as error:
            if watch is not None:
                _check_soon(watch)
            raise NotAvailableError(
                f"infra: rank {self.index} could not meet the other ranks of a mesh of "
                f"{self.size}: {with_rank(error)}"
            ) from error

    def meet(self, name, watch):
        """Waits until all ranks have come here. NotAvailableError: names those that have not in
        time."""
        keys = [f"{self.name(name)}/here/{rank}" for rank in range(self.size)]
        most = _first_meeting_s(self.timeout) if watch is None else _LATER_MEETINGS * self.timeout
        end = time.monotonic() + most
        waiting = nullcontext() if watch is None else core().Waiting(watch, _ABOUT_TO_MEET)
        with self.naming_failures(), waiting:
            self._store.set(keys[self.index], "1")
            while not self._store.check(keys):  # its wait can't be left when a rank has gone
                if watch is not None:
                    watch.check()
                if time.monotonic() > end:
                    missing = [r for r, key in enumerate(keys) if not self._store.check([key])]
                    self._store.delete_key(keys[self.index])  # one that comes late finds nobody
                    made_before = watch is not None or os.environ.get("TWINKLE_MODE") == "ray"
                    raise NotAvailableError(
                        f"infra: of a mesh of {self.size} ranks {missing} have not come within "
                        f"{most:g} s: {_SAME_ORDER if made_before else _NO_SIGN}"
                    )
                time.sleep(_LOOK_S)

    def group(self, name, place, watch):
        """A process group that is registered under its name. place: (index, size). watch: of the
        ranks."""
        with self.naming_failures(watch):
            name = self.name(name)
            made = process_group(name, name, self._store, (*place, self.timeout))
        made.set_timeout(FOREVER)
        return made


def _check_soon(watch):
    """InternalError: a rank has gone, of which the watch hears soon after a call has failed."""
    end = time.monotonic() + _NEWS_S
    while time.monotonic() < end:
        watch.check()
        time.sleep(_LOOK_S)


def with_rank(error):
    """Its text, and the rank whose key of the store has not come: Gloo's end in its number."""
    text = str(error)
    found = re.search(r"wait timeout after \d+ms, keys: \S*/(\d+)\s*$", text)
    return f"rank {found[1]} of the group has not come: {text}" if found else text


def watch_through(store, name, host, place):
    """A Watch of ranks that find each other by the key `name` of a store. host: under which they
    reach the first one's machine. place: (index, size, seconds that a rank may be silent).
    RuntimeError, OSError: another rank has not come in time."""
    index, size, timeout = place
    sockets = _listen(store, name, host, place) if index == 0 else [_connect(store, name, place)]
    return core().Watch(index, size, [each.detach() for each in sockets], timeout)


def _listen(store, name, host, place):
    """The connections of the other ranks, in their order."""
    _, size, timeout = place
    secret = secrets.token_bytes(16)
    with _listener(host) as server:
        server.settimeout(timeout)
        host, port = server.getsockname()[:2]
        store.set(name, f"{host} {port} {secret.hex()}")
        found = {}
        while len(found) < size - 1:
            connection, _ = server.accept()
            connection.settimeout(timeout)
            try:
                said = connection.makefile("rb", buffering=0).readline(64)
            except OSError:  # a stranger that has gone, or says nothing
                said = b""
            rank = int(said[32:] or 0) if said[:32] == secret.hex().encode() else 0
            if rank in range(1, size) and rank not in found:
                found[rank] = connection
            else:
                connection.close()  # a stranger
    return [found[rank] for rank in range(1, size)]


def _connect(store, name, place):
    """A connection to the first rank."""
    index, _, timeout = place
    host, port, secret = store.get(name).decode().split()
    connection = socket.create_connection((host, int(port)), timeout=timeout)
    connection.sendall(f"{secret}{index}\n".encode())
    return connection


def _listener(host):
    """A socket where other ranks reach this one: as they reach the store, which they know by this
    name; on another machine than the store's where its own address leads outside."""
    try:
        return socket.create_server((socket.gethostbyname(host), 0))
    except OSError:
        return socket.create_server((find_node_ip(), 0))


def _store(timeout):
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        require(
            os.environ.get(name),
            f"infra: {name} is not set, but the mesh has several ranks: start it with torchrun",
        )
    return _store_at(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], timeout)


@functools.cache  # the first rank's is the store itself, which has to stay
def _store_at(host, port, timeout):
    import torch.distributed as dist

    require_gloo()
    agent_has_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = dist.TCPStore(
            host,
            int(port),
            is_master=Platform.get_rank() == 0 and not agent_has_it,
            timeout=timedelta(seconds=_first_meeting_s(timeout)),
            wait_for_workers=False,
            multi_tenant=True,  # torch.distributed may have opened it in this process, or will
        )
        store.set_timeout(timedelta(seconds=_LATER_MEETINGS * timeout))
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
    seconds that a rank waits for another). RuntimeError: another rank has not come in time."""
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
    torch._C._distributed_c10d._register_process_group(name, group)
    return group
