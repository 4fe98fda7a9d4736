"""initialize(), device groups, and where objects are made."""

import importlib
import itertools
import json
import os
from dataclasses import dataclass, field
from typing import NamedTuple

from twinkle import checks
from twinkle.device_mesh import DeviceMesh, check_axes, ranks_in
from twinkle.engine.ranks import ranks_of
from twinkle.errors import NotAvailableError, require
from twinkle.logger import get_logger
from twinkle.notifier import Notifier
from twinkle.notifier.base import FatalHook
from twinkle.platform import CPU, GPU, Platform, timeout_seconds
from twinkle.remote.cluster import Cluster, check_groups
from twinkle.remote.stopped import end_when_stopped
from twinkle.remote.worker import go_to
from twinkle.seeding import seed_everything
from twinkle.service import Service


@dataclass
class DeviceGroup:
    """A named set of devices. ranks: how many, or the list of global ranks. device_type: 'cuda',
    'cpu', ..., of the objects that name the group in remote_group and have no mesh of another one;
    None: the machine's. gpus_per_worker, visible_devices: 1 and None, this version runs on one.

    InvalidError: no name, an unknown device_type, ranks that are neither an integer of at least 1
    nor integers from 0 on, a rank twice, a list of ranks of CPUs, gpus_per_worker that is no
    integer of at least 1. NotAvailableError: another gpus_per_worker or visible_devices.
    """

    name: str
    ranks: int | list
    device_type: str | None = None
    gpus_per_worker: int = 1
    visible_devices: str | None = None

    def __post_init__(self):
        checks.text("infra: name of a DeviceGroup", self.name)
        kind = GPU if self.device_type is None else Platform.of(self.device_type)
        group = f"group {self.name}"
        if isinstance(self.ranks, (list, tuple, range, set)):
            self.ranks = ranks_in(f"infra: {group}", self.ranks)
            must = "its ranks must be a number, not a list"
            require(kind is not CPU, f"infra: {group} is on CPUs, so {must}")
        else:
            what = f"infra: ranks of {group}, how many or a list of them,"
            self.ranks = checks.integer(what, self.ranks, least=1)
        checks.integer("infra: gpus_per_worker", self.gpus_per_worker, least=1)
        for name, only in (("gpus_per_worker", 1), ("visible_devices", None)):
            value = getattr(self, name)
            if value != only:
                raise NotAvailableError(
                    f"infra: {name} of {group} is {value!r}, this version runs on one device: "
                    "leave it out, or set CUDA_VISIBLE_DEVICES"
                )

    @property
    def num_ranks(self):
        """How many ranks the group has."""
        return self.ranks if isinstance(self.ranks, int) else len(self.ranks)


class Placed(NamedTuple):
    """An object that was built. mesh: None: it has none. device: that its engine runs on; None: it
    has none, or is in workers, which are on their group's. group: the name of the one whose workers
    have it, or which this process is of; None: of none."""

    name: str
    mesh: DeviceMesh | None
    device: str | None
    group: str | None


@dataclass
class _Run:
    """The settings of initialize() for this process."""

    mode: str = "local"
    seed: int = 42
    full_determinism: bool = False
    groups: list = field(default_factory=list)
    mesh: DeviceMesh | None = None
    name: str | None = None
    hook: FatalHook | None = None  # calls the notifier when the process fails
    lazy_collect: bool = True
    service: Service | None = None  # in mode 'http'
    cluster: object = None  # in mode 'ray' with several ranks: a remote.cluster.Cluster
    worker_of: str | None = None  # the group's name, where this process is a worker of one
    objects: list = field(default_factory=list)  # a Placed of each that was built

    def end(self):
        """Ends what it has started."""
        for part, ending in ((self.hook, "remove"), (self.service, "stop"), (self.cluster, "stop")):
            if part is not None:
                getattr(part, ending)()

    def made_in_workers(self, cls, remote_group, mesh, share):
        """A Proxy of an object that is made in the workers of a group, in mode 'ray'. share: as of
        Cluster.make."""
        group = group_of(remote_group, f"a {cls.__name__}")
        proxy = self.cluster.make(cls, group, mesh, share)
        self.objects.append(Placed(cls.__name__, proxy.device_mesh, None, group.name))
        return proxy


_run = _Run()


def current_run():
    """The settings of initialize(); the defaults before it was called."""
    return _run


is_master = Platform.is_master


def check_world(mesh, what):
    """Refuses a mesh that this process count cannot hold, naming both. InvalidError: no DeviceMesh,
    or of another number of ranks than processes are running."""
    checks.instance(f"infra: {what}", mesh, DeviceMesh, "a DeviceMesh")
    world, size = Platform.get_world_size(), mesh.world_size
    sizes = ", ".join(f"{axis}={ranks}" for axis, ranks in mesh.sizes.items())
    require(
        size == world,
        f"infra: {what} has {size} rank{'s' * (size > 1)} ({sizes}), but {world} "
        f"process{'es are' if world > 1 else ' is'} running: start one process per rank with "
        f"torchrun --nproc_per_node={size}, or make a mesh of {world}, as with dp_size={world}",
    )


def check_mesh(mesh, what):
    """check_world, of what runs an engine. NotAvailableError: as check_axes."""
    check_axes(mesh, what)  # no number of processes would do for others
    check_world(mesh, what)


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
    **options,
):
    """Fixes mode, seed, groups and mesh of this process. Optional on one device.

    mode: 'local' (this process, or torchrun's); 'ray', which starts or joins a Ray cluster with a
    worker for each rank of the groups (docs/ray.md), of which one rank in all is this process; or
    'http', which starts `twinkle serve` as a child of this process and returns its URL.
    lazy_collect: whether results stay in the workers until they are looked at. option of mode
    'ray': placement_seconds, 30: how long the cluster may take to give a group its place.
    options, of mode 'http': those of `twinkle serve` with '_' for '-' (model, names, port, state,
    config, ...); port is a free one, state ./twinkle-state, which is made, or goes on. Without
    model and config it serves the model of the variable TWINKLE_SERVER_MODEL, or else smollm2, on
    port 8000, prints that, and this process stays until it is stopped. Where a state has keys the
    service asks for one, which TINKER_API_KEY must be then, unless auth is given. TINKER_BASE_URL
    and TWINKLE_SERVER_URL are set to the URL, so that tinker.ServiceClient() finds it. The service
    ends with this process, or with the next initialize(). seed: of `random`, numpy, torch, and of
    every adapter and sampler that is given none. full_determinism: deterministic kernels.
    global_device_mesh: of every object that is built without its own; its size must be the number
    of processes. Several processes meet here, so all must call this, and each hears from then on
    when another ends. notifier: a Notifier, or a function of a text in Markdown: called once with
    the exception that ends the process.
    A second call replaces the first. InvalidError: an unknown mode, a seed outside 0 to 2^32 - 1, a
    number of processes below 1, groups that are no list of DeviceGroups or share a name or a rank,
    a mesh of another size, a notifier that cannot be called, a name that is no text,
    full_determinism that is neither True nor False, options in another mode than theirs, options
    that `twinkle serve` refuses, a state with keys and no key; mode 'ray' without groups, with
    groups that the cluster has no place for, or with a mesh of initialize that fits none of them.
    NotAvailableError: mode 'ray' with several ranks without the package ray, or where no cluster
    can be reached; mode 'http' in several processes, or with a mesh of several ranks, since its
    service runs on one (groups of several are taken, with a warning); in mode 'local', a rank of a
    mesh of several processes that has not called this within TWINKLE_DIST_TIMEOUT_SECONDS, or
    within 30 s where these are fewer.
    """
    global _run  # noqa: PLW0603 (the one place that holds it)
    groups, mesh = _checked_groups(groups), global_device_mesh
    _check_mode(mode, groups, options)
    seed = checks.integer("infra: seed", seed, 0, 2**32 - 1)
    full_determinism = checks.flag("infra: full_determinism", full_determinism)
    checks.integer("infra: nproc_per_node", nproc_per_node, least=1)
    checks.integer("infra: ncpu_proc_per_node", ncpu_proc_per_node, least=1)
    checks.text("infra: name", name, none=True, empty=True)
    checks.flag("infra: lazy_collect", lazy_collect)
    ranks = sum(group.num_ranks for group in groups)  # one rank in all is this process
    workers = mode == "ray" and (ranks > 1 or bool(os.environ.get("RAY_ADDRESS")))
    if mode == "http":
        _check_one_process(mesh, groups)
    if workers:
        check_groups(groups, mesh)
    elif mesh is not None:
        check_mesh(mesh, "global_device_mesh")
    if mode == "local" and mesh is not None and os.environ.get("TWINKLE_MODE") != "ray":
        # From here on each rank hears of another's end, also of one that comes before its first
        # model. (Ray tells of a worker's end by itself.)
        ranks_of(mesh)
    hook = _hook(notifier, name)
    _run.end()
    _run = _Run(mode, seed, full_determinism, groups, mesh, name, hook, lazy_collect)
    if name:
        os.environ["TWINKLE_NAME"] = name
    os.environ.setdefault("TWINKLE_SESSION_ID", str(os.getpid()))
    seed_everything(seed, full_determinism)
    if workers:
        _start_workers(max(nproc_per_node, ncpu_proc_per_node), options)
    if mode != "http":
        return None
    _run.service = Service(options)
    return _run.service.url


def _start_workers(per_node, options):
    global _run  # noqa: PLW0603 (as above)
    try:
        _run.cluster = Cluster(begin_worker, _run, per_node, **options)
    except BaseException:  # nothing that is for workers may be made in this process
        _run.end()
        _run = _Run()
        raise


def _check_mode(mode, groups, options):
    checks.one_of("infra: mode", mode, ("local", "ray", "http"))
    known = {"local": (), "ray": ("placement_seconds",), "http": options}[mode]
    unknown = [name for name in options if name not in known]
    require(not unknown, f"infra: initialize has no {', '.join(unknown)} in mode {mode!r}")
    if mode == "ray":
        example = "[DeviceGroup('default', ranks=2)]"
        require(groups, f"infra: mode 'ray' needs groups, such as {example}")
        checks.number("infra: placement_seconds", options.get("placement_seconds", 0), least=0)


def _checked_groups(groups):
    """A list of them. Refuses what are no groups, and groups that share a name or ranks."""
    groups = () if groups is None else groups
    groups = list(checks.instance("infra: groups", groups, (list, tuple), "a list of DeviceGroups"))
    for group in groups:
        require(isinstance(group, DeviceGroup), f"infra: {group!r} must be a DeviceGroup")
    names = [group.name for group in groups]
    require(len(set(names)) == len(names), f"infra: groups {names} must have different names")
    lists = [group for group in groups if isinstance(group.ranks, list)]
    for a, b in itertools.combinations(lists, 2):
        shared = sorted(set(a.ranks) & set(b.ranks))
        require(
            not shared,
            f"infra: groups {a.name} and {b.name} both have rank{'s' * (len(shared) > 1)} "
            f"{', '.join(map(str, shared))}: give one of them others, or make their objects in one "
            "group",
        )
    return groups


def _check_one_process(mesh, groups):
    """Refuses what asks for several services, or for one of several ranks; warns of groups whose
    ranks mode 'http' has no use for."""
    world, only = Platform.get_world_size(), "runs on one process in this version"
    if world > 1:
        raise NotAvailableError(
            f"infra: mode 'http' starts one service, which {only}, but {world} processes are "
            "running: start the script with python, not with torchrun"
        )
    if isinstance(mesh, DeviceMesh) and mesh.world_size > 1:
        raise NotAvailableError(
            f"infra: global_device_mesh has {mesh.world_size} ranks, but the service of mode "
            f"'http' {only}: leave it out"
        )
    several = [f"{g.name} ({g.num_ranks} ranks)" for g in groups if g.num_ranks > 1]
    if several:
        get_logger().warning(
            f"infra: the service {only}, so groups {', '.join(several)} of mode 'http' have one "
            "rank there: leave groups out, or give them ranks=1"
        )


def begin_worker(environment, folder, settings):
    """Makes this process a worker of a group: sets its environment, and initialize with these
    settings. folder: the driver's, to which relative paths belong, where this machine has it."""
    os.environ.update(environment)
    go_to(folder, environment["WORKER_NAME"])
    initialize(**settings)
    _run.worker_of = environment["CLUSTER_NAME"]
    end_when_stopped(timeout_seconds())


def _hook(notifier, name):
    """Installs the hook that calls the notifier; processes that this one starts find it as JSON."""
    if notifier is None:
        return None
    if not callable(notifier):
        checks.refuse("infra: notifier", notifier, "a Notifier, or a function of a text")
    if isinstance(notifier, Notifier):
        os.environ["TWINKLE_NOTIFIER"] = json.dumps(notifier.to_dict())
    return FatalHook(notifier, name)


def register(instance, mesh=None, remote_group=None):
    """Notes that an object was built, for get_device_placement(). InvalidError: as check_world and
    group_of."""
    name, mesh = type(instance).__name__, mesh_here(mesh)
    if mesh is not None:
        check_world(mesh, f"device_mesh of {name}")
    _note(name, mesh, None, group_of(remote_group, name))


def _note(name, mesh, device, group):
    in_driver = _run.cluster is not None  # the groups' devices are the workers'
    _run.objects.append(Placed(name, mesh, device, None if in_driver or not group else group.name))


def mesh_here(mesh):
    """An object's mesh, or that of initialize(); None with workers, whose ranks the mesh is over:
    what lives in the driver has none."""
    return _run.mesh if mesh is None and _run.cluster is None else mesh


def place(instance, mesh=None, remote_group=None, shared=None):
    """register, for an object with an engine: (its mesh, its device as device_of). shared: the
    device of the engine that it shares. InvalidError and NotAvailableError: as check_mesh, group_of
    and device_of; InvalidError: another device is asked for than the shared one."""
    name, mesh, world = type(instance).__name__, mesh_here(mesh), Platform.get_world_size()
    if mesh is not None:
        check_mesh(mesh, f"device_mesh of {name}")
    elif world > 1:
        get_logger().warning_once(
            f"infra: {name} has no device_mesh, so each of {world} processes computes by itself, "
            f"of its own rows alone: initialize(global_device_mesh=DeviceMesh.from_sizes(dp_size="
            f"{world})) lets them share the work"
        )
    group = group_of(remote_group, name)
    asked, by = asked_device(mesh, group)
    require(
        shared is None or asked in (None, shared),
        f"infra: {by} {asked!r}, but the model that the {name} samples from "
        f"runs on {shared!r}: leave device_type out",
    )
    device = shared or device_of(mesh, group)
    _note(name, mesh, device, group)
    return mesh, device


def group_of(name, what):
    """The DeviceGroup that `what` is given by its remote_group. Where that is None: the one that
    this worker is of, or else the only one; None: initialize was given none, and all is in this
    process. InvalidError: a name that no group has; NotAvailableError: in a worker, another group
    than its own."""
    checks.text(f"infra: remote_group of {what}", name, none=True)
    groups = {group.name: group for group in _run.groups}
    if name is None:
        only = next(iter(groups)) if len(groups) == 1 else None
        return groups.get(_run.worker_of or only)
    if name in groups and _run.worker_of not in (None, name):
        raise NotAvailableError(
            f"infra: remote_group of {what} is {name!r}, but it would be made in a worker of group "
            f"{_run.worker_of}: make it in the driver"
        )
    if groups and name not in groups:
        must = f"a group of initialize: {', '.join(groups)}"
        checks.refuse(f"infra: remote_group of {what}", name, must)
    return groups.get(name)


def asked_device(mesh, group):
    """(the device that is asked for, or None; by whom, as the beginning of a sentence)."""
    if Platform.forced():
        return Platform.forced(), "TWINKLE_DEVICE is"
    if mesh is not None and mesh.device_type:
        return mesh.device_type, "device_mesh has device_type"
    if group is not None and group.device_type:
        kind = Platform.of(group.device_type).device_prefix()
        return kind, f"group {group.name} has device_type"
    return None, ""


def device_of(mesh, group=None):
    """Where an engine runs, 'cpu', 'cuda' or 'cuda:1': what TWINKLE_DEVICE says, else the mesh's
    device_type, else the group's, else what the machine has; a card that no engine can run on is
    logged once. NotAvailableError: another device_type; InvalidError: a cuda device is
    asked for that is not there."""
    kind, by = asked_device(mesh, group)
    if kind is None:
        kind, why_no_cuda = Platform.default_device()
        if why_no_cuda:
            get_logger().warning_once(f"infra: {why_no_cuda}; using the CPU")
        return kind
    remedy = "leave it out to run on what there is, or set TWINKLE_DEVICE=cpu"
    if kind.partition(":")[0] not in ("cpu", "cuda"):
        only = "this version runs on 'cpu' and 'cuda'"
        raise NotAvailableError(f"infra: {by} {kind!r}, {only}: {remedy}")
    why_not = "" if kind == "cpu" else Platform.why_not_on(kind)
    require(not why_not, f"infra: {by} {kind!r}, but {why_not}: {remedy}")
    return kind


def __getattr__(name):
    if name == "get_device_placement":  # its other name; placement imports this module
        return importlib.import_module("twinkle.placement").get_device_placement
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
