"""The process groups that the ranks of a mesh talk through."""

import itertools
import os
from contextlib import contextmanager
from datetime import timedelta

from twinkle.errors import InvalidError, NotAvailableError, require
from twinkle.platform import Platform, environment_number

_ENGINE = ("door", "control", "data")  # one for each thread of an engine that talks
_BASE = "base"  # of the ranks along fsdp, which share the base's weights
_numbers = itertools.count(1)


def timeout_seconds():
    """How long a rank waits for another: TWINKLE_DIST_TIMEOUT_SECONDS, 60 without. InvalidError: it
    is no number from 1 to 86400."""
    return environment_number("TWINKLE_DIST_TIMEOUT_SECONDS", 60.0, 1, 86_400)


@contextmanager
def engine_group(mesh):
    """In its block: what the compiled engine takes as its `group`, for a mesh of several ranks;
    None: one rank. The engine finds the groups by their names, and is their holder from then on.

    Waits until every rank of the mesh has called it, each as its how manieth. Makes groups of its
    own, with Gloo, beside those of torch.distributed. InvalidError: the process was not started by
    torchrun, which sets MASTER_ADDR and MASTER_PORT; NotAvailableError: a torch without Gloo, or a
    rank that has not come in time.
    """
    if mesh is None or mesh.world_size == 1:
        yield None
        return
    timeout = timeout_seconds()
    number = next(_numbers)
    index, size = mesh.data_rank, mesh.data_world_size
    require(index is not None, "infra: device_mesh does not hold this process's rank")
    # A restart by torchrun must not meet the keys of the run before.
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    names = [f"twinkle/{restart}/{number}/{what}" for what in _ENGINE]
    store = _store(timeout)
    base = None
    try:
        held = [process_group(name, name, store, (index, size, timeout)) for name in names]
        if (mesh.fsdp_world_size or 1) > 1:
            base = f"twinkle/{restart}/{number}/{_BASE}/{mesh.dp_rank or 0}"
            place = (mesh.fsdp_rank, mesh.fsdp_world_size, timeout)
            held.append(process_group(base, base, store, place))
    except RuntimeError as error:
        raise NotAvailableError(
            f"infra: rank {index} could not meet the other ranks of a mesh of {size}: {error}"
        ) from error
    yield (*names, timeout, base)
    held.clear()  # a group ends, and the other ranks hear of it, with its last holder


def _store(timeout):
    import torch.distributed as dist

    for name in ("MASTER_ADDR", "MASTER_PORT"):
        require(
            os.environ.get(name),
            f"infra: {name} is not set, but the mesh has several ranks: start the script with "
            "torchrun --nproc_per_node=N",
        )
    require_gloo()
    agent_has_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        return dist.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=Platform.get_rank() == 0 and not agent_has_it,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,  # torch.distributed may have opened it in this process, or will
        )
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise InvalidError(
            f"infra: MASTER_ADDR and MASTER_PORT say {where}, where no store of ranks answers: "
            f"{error}"
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
