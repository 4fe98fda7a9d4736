"""initialize(), device groups, and the text that shows who runs where."""

import hashlib
import os
import random
from dataclasses import dataclass, field

from twinkle import checks
from twinkle.device_mesh import DeviceMesh
from twinkle.errors import InvalidError, NotAvailableError, require
from twinkle.platform import Platform


@dataclass
class DeviceGroup:
    """A named set of devices. ranks: how many, or the list of global ranks."""

    name: str
    ranks: int | list
    device_type: str = "cuda"
    gpus_per_worker: int = 1
    visible_devices: str | None = None
    _device_mesh: dict = field(default_factory=dict, repr=False)

    def __post_init__(self):
        require(bool(self.name), "infra: a DeviceGroup needs a name")
        kind = Platform.of(self.device_type)
        if isinstance(self.ranks, int):
            require(self.ranks >= 1, f"infra: group {self.name} has {self.ranks} ranks, it needs 1")
        else:
            self.ranks = list(self.ranks)
            require(
                len(set(self.ranks)) == len(self.ranks) > 0,
                f"infra: group {self.name} has ranks {self.ranks}, they must differ",
            )
            require(
                kind.device_prefix != "cpu",
                f"infra: group {self.name} is of CPUs, its ranks must be a number, not a list",
            )
        require(
            self.gpus_per_worker >= 1,
            f"infra: gpus_per_worker is {self.gpus_per_worker}, it must be at least 1",
        )

    @property
    def num_ranks(self):
        return self.ranks if isinstance(self.ranks, int) else len(self.ranks)


@dataclass
class _Run:
    """What initialize() fixed for this process."""

    mode: str = "local"
    seed: int = 42
    full_determinism: bool = False
    groups: list = field(default_factory=list)
    mesh: DeviceMesh | None = None
    name: str | None = None
    notifier: object = None
    objects: list = field(default_factory=list)  # (class name, mesh) of what was built


_run = _Run()


def current_run():
    """What initialize() fixed; the defaults before it was called."""
    return _run


def stable_seed(*parts):
    """A seed from the parts, the same in every process: the first 32 bits of their SHA-256."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "little")


def is_master():
    """True on global rank 0."""
    return Platform.is_master()


def check_mesh(mesh, what):
    """Refuses a mesh that this process count cannot hold, naming both."""
    if not isinstance(mesh, DeviceMesh):
        checks.refuse(f"infra: {what}", mesh, "a DeviceMesh")
    world = Platform.get_world_size()
    if mesh.world_size != world:
        sizes = ", ".join(
            f"{n}={s}" for n, s in zip(mesh.mesh_dim_names, mesh.mesh.shape, strict=True)
        )
        raise InvalidError(
            f"infra: {what} has {mesh.world_size} ranks ({sizes}), but {world} "
            f"process{'es are' if world > 1 else ' is'} running: start one process per rank with "
            f"torchrun --nproc_per_node={mesh.world_size}, or make the mesh smaller"
        )
    if mesh.world_size > 1:
        raise NotAvailableError(
            f"infra: {what} has {mesh.world_size} ranks; this version trains on one device"
        )


def initialize(
    mode="local",
    nproc_per_node=8,
    ncpu_proc_per_node=8,
    seed=42,
    full_determinism=False,
    groups=None,
    global_device_mesh=None,
    lazy_collect=True,
    name=None,
    notifier=None,
):
    """Fixes mode, seed, groups and mesh of this process. Optional on one device.

    mode: 'local' (this process, or torchrun's). seed: of `random`, numpy, torch, and of every
    adapter and sampler that is given none. full_determinism: deterministic kernels.
    global_device_mesh: of every object that is built without its own; its size must be the number
    of processes.
    A second call replaces the first.
    """
    global _run  # noqa: PLW0603 (the one place that holds it)
    if mode in ("ray", "http"):
        raise NotAvailableError(
            f"infra: mode {mode!r} is not available in this version; mode 'local' is"
        )
    require(mode == "local", f"infra: mode is {mode!r}, it must be 'local', 'ray' or 'http'")
    require(
        isinstance(seed, int) and 0 <= seed < 2**32,
        f"infra: seed is {seed!r}, it must be an integer from 0 to 2**32 - 1",
    )
    for label, value in (
        ("nproc_per_node", nproc_per_node),
        ("ncpu_proc_per_node", ncpu_proc_per_node),
    ):
        require(
            isinstance(value, int) and value >= 1,
            f"infra: {label} is {value!r}, it must be at least 1",
        )
    del lazy_collect  # in one process results are never handles
    if global_device_mesh is not None:
        check_mesh(global_device_mesh, "global_device_mesh")
    if groups is None:
        groups = [DeviceGroup("default", Platform.get_world_size(), "cpu")]
    for group in groups:
        require(isinstance(group, DeviceGroup), f"infra: {group!r} must be a DeviceGroup")
    require(
        len({group.name for group in groups}) == len(groups),
        f"infra: groups {[group.name for group in groups]} must have different names",
    )
    _run = _Run(mode, seed, full_determinism, list(groups), global_device_mesh, name, notifier)
    if name:
        os.environ["TWINKLE_NAME"] = name
    os.environ.setdefault("TWINKLE_SESSION_ID", str(os.getpid()))
    _seed_everything(seed, full_determinism)


def _seed_everything(seed, full_determinism):
    random.seed(seed)
    if full_determinism:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
    import numpy as np
    import torch

    np.random.seed(seed)
    torch.manual_seed(seed)
    if full_determinism:
        torch.use_deterministic_algorithms(True, warn_only=True)


def register(instance, mesh=None):
    """Notes that an object was built, for get_device_placement(). Returns its mesh."""
    mesh = _run.mesh if mesh is None else mesh
    if mesh is not None:
        check_mesh(mesh, f"device_mesh of {type(instance).__name__}")
    _run.objects.append((type(instance).__name__, mesh))
    return mesh


def get_device_placement():
    """A box of 80 columns: device groups, the meshes on them, and what was built on each."""
    width = 80
    groups = _run.groups or [DeviceGroup("default", Platform.get_world_size(), "cpu")]
    lines = ["┌" + " Device placement ".center(width - 2, "─") + "┐"]

    def row(text=""):
        while True:
            lines.append("│ " + text[: width - 4].ljust(width - 4) + " │")
            text = text[width - 4 :]
            if not text:
                return

    for group in groups:
        ranks = list(range(group.ranks)) if isinstance(group.ranks, int) else group.ranks
        row(f"group {group.name}: {group.num_ranks} x {group.device_type}, ranks {ranks}")
    meshes = {}
    for name, mesh in _run.objects:
        meshes.setdefault(id(mesh), (mesh, []))[1].append(name)
    if not meshes and _run.mesh is not None:
        meshes[id(_run.mesh)] = (_run.mesh, [])
    for mesh, names in meshes.values():
        if mesh is None:
            row("  no mesh (one device)")
        else:
            sizes = zip(mesh.mesh_dim_names, mesh.mesh.shape, strict=True)
            row("  mesh " + ", ".join(f"{n}={s}" for n, s in sizes))
        for name in dict.fromkeys(names):
            row(f"    {name} x {names.count(name)}" if names.count(name) > 1 else f"    {name}")
    lines.append("└" + "─" * (width - 2) + "┘")
    return "\n".join(lines)
