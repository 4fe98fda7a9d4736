"""Cluster: the Ray cluster of this run, the placement group and the workers of each DeviceGroup."""

import atexit
import os
import secrets
import socket
from pathlib import Path

from twinkle import checks
from twinkle.device_mesh import DeviceMesh, check_axes
from twinkle.errors import InternalError, InvalidError, NotAvailableError, require
from twinkle.logger import get_logger
from twinkle.platform import Platform, environment_number, timeout_seconds
from twinkle.remote.dispatch import Share
from twinkle.remote.group import WorkerGroup
from twinkle.remote.lazy import LazyResult
from twinkle.remote.proxy import Proxy
from twinkle.remote.worker import Worker, address

VERSION = "2.60"
# For nodes without RAY_AUTH_MODE; Ray's own text there asks for a token.
_REFUSED = (
    "; where `ray start` of a node has ended with InvalidAuthToken, run `export "
    "RAY_AUTH_MODE=token` before it"
)
_START_SECONDS = 600  # that a worker has at least; most is torch's import, from a disk that is busy


def ray_package():
    """The package ray. NotAvailableError: it is not installed, or of another minor version;
    InvalidError: something else has its name, such as a script ray.py."""
    remedy = f"pip install 'ray=={VERSION}.*'"
    try:
        import ray
    except ImportError as error:
        raise NotAvailableError(
            f"infra: mode 'ray' with several ranks needs the package ray {VERSION}: {remedy}"
        ) from error
    require(
        hasattr(ray, "__version__"),
        f"infra: `import ray` gives {ray.__file__ or list(ray.__path__)}, which is not the package "
        "ray: give that another name",
    )
    if ray.__version__.rpartition(".")[0] != VERSION:
        text = f"infra: the package ray is {ray.__version__}, it must be {VERSION}.*: {remedy}"
        raise NotAvailableError(text)
    return ray


def check_groups(groups, mesh):
    """Refuses groups that cannot be placed anywhere, before anything is started. InvalidError: a
    global_device_mesh that is no DeviceMesh, or fits none of them; NotAvailableError: a device that
    no engine runs on, axes that none has, no package ray."""
    for group in groups:
        _needs(group)
    if mesh is not None:
        check_axes(mesh, "global_device_mesh")
        sizes = ", ".join(f"{group.name} has {group.num_ranks}" for group in groups)
        require(
            mesh.world_size in [group.num_ranks for group in groups],
            f"infra: global_device_mesh has {mesh.world_size} ranks, but no group has: {sizes}: "
            "make it of as many as the group whose objects it is for",
        )
    ray_package()


class Cluster:
    """Starts or joins a Ray cluster and starts the workers of all groups in it.

    begin_worker: a function of a worker's environment, the driver's folder and the settings below,
    called in each worker. run: seed, full_determinism, groups, name and mesh of initialize().
    per_node: most CPUs that a cluster which is started here has. placement_seconds: how long it may
    take to give a group its place. InvalidError: the cluster has no place for a group;
    NotAvailableError: no such cluster, or no package ray; InternalError: a worker is gone, or has
    not started in time; and what begin_worker raises there.
    """

    def __init__(self, begin_worker, run, per_node, placement_seconds=30):
        self.groups, self._placed, self._run = {}, [], run
        self._ray, self._variables = ray_package(), ()
        self._connect(per_node)
        atexit.register(self.stop)
        try:
            for group in run.groups:
                self._placed.append(_placed(self._ray, group, placement_seconds))
            for group, place in zip(run.groups, self._placed, strict=True):
                self.groups[group.name] = self._started(group, place, begin_worker)
        except BaseException:
            self.stop()
            raise

    # ---- start and end

    def _connect(self, per_node):
        """Joins a cluster, which stays when this run ends, or starts one, which does not."""
        ray = self._ray
        self._connected = not ray.is_initialized()
        if not self._connected:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        address = os.environ.get("RAY_ADDRESS") or None
        found = address or ray._private.services.find_bootstrap_address(None)
        try:
            if found and found != "local":
                _check_answers(found, explicit=address is not None)
                self._variables = _agree_on_token(explicit=address is not None)
                ray.init(logging_level="warning")
                _warn_without_token(found)
            else:
                self._variables = _agree_on_token(own=True)
                options = {"include_dashboard": False, "logging_level": "warning"}
                ray.init("local", num_cpus=max(os.cpu_count() or 1, per_node), **options)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self._forget_token()
            where = f"the Ray cluster at {found}" if found else "a Ray cluster"
            text = f"infra: {where} cannot be reached: {error}"
            if found:
                text += ": RAY_AUTH_MODE and ~/.ray/auth_token must be those of all its nodes "
                text += "(docs/ray.md)"
            raise NotAvailableError(text) from error

    def stop(self):
        """Ends the workers, and the cluster if it was started here."""
        atexit.unregister(self.stop)
        if not self._ray.is_initialized():
            return
        try:
            for group in self.groups.values():
                group.end()
            for place in self._placed:
                self._ray.util.remove_placement_group(place)
        finally:
            self.groups, self._placed = {}, []
            if self._connected:
                self._ray.shutdown()
                self._forget_token()

    def _forget_token(self):
        """The next cluster may have another."""
        for name in self._variables:
            os.environ.pop(name, None)

    def _started(self, group, place, begin_worker):
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as At

        cpus, gpus = _needs(group)
        options = self._ray.remote(Worker).options
        ranks = range(group.num_ranks)
        actors = [
            options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=At(place, rank)).remote()
            for rank in ranks
        ]
        workers = WorkerGroup(group.name, actors)
        names = "seed", "full_determinism", "groups", "name"
        settings = {name: getattr(self._run, name) for name in names}
        settings["global_device_mesh"] = self.mesh_of(group)
        of_first = _begun(workers, "the start of a process", address, [Share((), {})])
        variables = [_environment(group, rank, of_first) for rank in ranks]
        given = [Share((own, str(Path.cwd()), settings), {}) for own in variables]
        _begun(workers, "initialize() in each worker", begin_worker, given)
        return workers

    def mesh_of(self, group):
        """The mesh of a group's objects that have none: initialize's, or all ranks along dp."""
        mesh, size = self._run.mesh, group.num_ranks
        fits = mesh is not None and mesh.world_size == size
        return mesh if fits else DeviceMesh.from_sizes(dp_size=size)

    # ---- objects

    def make(self, cls, group, mesh, share):
        """A Proxy of a new object in the workers of a DeviceGroup. mesh: None: mesh_of the group;
        share: the constructor's arguments. InvalidError: a mesh that does not fit them; and what
        the constructor raises there."""
        mesh = self.mesh_of(group) if mesh is None else mesh
        _check_fits(cls, group, mesh)
        return Proxy(cls, self.groups[group.name], mesh, self._run.lazy_collect, share)


def _begun(workers, what, task, given):
    """The first worker's result of a task, with a Share for each, or for the first. InternalError:
    they have not all ended it in _START_SECONDS, or ten timeouts where these are more."""
    seconds = max(_START_SECONDS, 10 * timeout_seconds())
    result = LazyResult(workers.send(what, 0, task, given, [0]), [0], "first", seconds)
    try:
        return result()
    except TimeoutError as error:
        if result._pending.is_seen:  # a worker's own
            raise
        late = f"ranks {sorted(result._pending.left().values())} of group {workers.name}"
        raise InternalError(
            f"infra: {late} have not started: {what} has not ended in {seconds:g} s: look at the "
            "logs of their workers below /tmp/ray/session_latest/logs, or, on slow nodes, set "
            "TWINKLE_DIST_TIMEOUT_SECONDS to a tenth of what they need"
        ) from error


def _check_answers(address, explicit):
    """Refuses a cluster where nobody listens; Ray itself tries for two minutes. explicit: whether
    RAY_ADDRESS names it. Addresses that are no host:port are Ray's to judge. NotAvailableError: it
    does not answer in 10 s."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise NotAvailableError(
            f"infra: {'RAY_ADDRESS is' if explicit else 'ray start has noted a cluster at'} "
            f"{address!r}, but nobody answers there ({error}): start it with ray start --head, or "
            "set RAY_ADDRESS=local to start one on this machine"
        ) from error


def _agree_on_token(own=False, explicit=False):
    """Turns Ray's token authentication on where nobody has said otherwise. A cluster that is
    started here gets a token of its own, which only its processes know. Returns the names of the
    environment variables that it has set."""
    from ray._raylet import AuthenticationTokenLoader, Config

    known = any(os.environ.get(f"RAY_AUTH_TOKEN{end}") for end in ("", "_PATH"))
    has_file = known or (Path.home() / ".ray" / "auth_token").is_file()
    wanted = {}
    if "RAY_AUTH_MODE" not in os.environ and (own or (explicit and has_file)):
        wanted["RAY_AUTH_MODE"] = "token"
    if own and not known and os.environ.get("RAY_AUTH_MODE", "token") == "token":
        wanted["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ |= wanted
    Config.initialize("")  # anew: it read the environment when ray was imported
    AuthenticationTokenLoader.instance().reset_cache()
    return tuple(wanted)


def _has_token():
    from ray._raylet import AuthenticationMode, get_authentication_mode

    return get_authentication_mode() == AuthenticationMode.TOKEN


def _warn_without_token(address):
    """Warns where this process has joined a cluster without one, unless it was told to."""
    if "RAY_AUTH_MODE" in os.environ or _has_token():
        return
    get_logger().warning(
        f"infra: the Ray cluster at {address} asks for no token, so whoever reaches its ports can "
        "run code on its nodes: before `ray start`, once `ray get-auth-token --generate > "
        "/dev/null`, and on every node `export RAY_AUTH_MODE=token` (docs/ray.md)"
    )


def _needs(group):
    """(CPUs, GPUs) of each worker. NotAvailableError: another device; InvalidError: nothing."""
    asked = Platform.of(group.device_type or "cpu").device_prefix()
    kind = (Platform.forced() or asked).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise NotAvailableError(
            f"infra: group {group.name} has device_type {group.device_type!r}, this version runs "
            "on 'cpu' and 'cuda': set TWINKLE_DEVICE=cpu to run on CPUs"
        )
    cpus = environment_number("TWINKLE_CPU_PG_CPUS_PER_PROC", 1.0, 0, 1024)
    require(
        cpus or kind == "cuda",
        f"infra: TWINKLE_CPU_PG_CPUS_PER_PROC is 0, but the workers of group {group.name} have no "
        "GPU either, and Ray places none without something of a node: leave it out",
    )
    return (int(cpus) if cpus == int(cpus) else cpus), int(kind == "cuda")


def _placed(ray, group, seconds):
    """A placement group with a bundle for each worker. InvalidError: there is no place in time."""
    from ray.util.placement_group import placement_group, remove_placement_group

    cpus, gpus = _needs(group)
    bundle = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    place = placement_group([bundle] * group.num_ranks, strategy="PACK")
    try:
        ray.get(place.ready(), timeout=seconds)
    except ray.exceptions.GetTimeoutError:
        free, whole = ray.available_resources(), ray.cluster_resources()
        remove_placement_group(place)
        there = [f"{free.get(n, 0):g} of {whole.get(n, 0):g} {n}s are free" for n in ("CPU", "GPU")]
        asked = " and ".join(f"{count:g} {name}" for name, count in bundle.items())
        raise InvalidError(
            f"infra: the Ray cluster has no place for group {group.name} after {seconds:g} s: its "
            f"{group.num_ranks} ranks need {asked} each, {', '.join(there)}: make the groups "
            "smaller, add nodes"
            + ", or set TWINKLE_DEVICE=cpu to run on CPUs" * gpus
            + _REFUSED * _has_token()
        ) from None
    return place


def _environment(group, rank, address):
    """The variables of a worker: the driver's TWINKLE_ variables, and its rank's."""
    passed = {name: value for name, value in os.environ.items() if name.startswith("TWINKLE_")}
    if _needs(group)[1] == 0:  # Ray leaves a machine's cards visible to who has asked for none
        passed["CUDA_VISIBLE_DEVICES"] = ""
    return passed | {
        "TWINKLE_MODE": "ray", "RANK": str(rank), "WORLD_SIZE": str(group.num_ranks),
        "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": address[0], "MASTER_PORT": str(address[1]),
        "CLUSTER_NAME": group.name, "WORKER_NAME": f"{group.name}-{rank}",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }  # fmt: skip


def _check_fits(cls, group, mesh):
    what = f"device_mesh of {cls.__name__}"
    checks.instance(f"infra: {what}", mesh, DeviceMesh, "a DeviceMesh")
    ranks = sorted(map(int, mesh.mesh.flat))
    require(
        ranks == list(range(group.num_ranks)),
        f"infra: {what} has ranks {ranks}, but group {group.name} has {group.num_ranks}, which "
        "count from 0: make a mesh of as many",
    )
