"""DeviceMesh: named axes over ranks, and the arithmetic on them. Only groups need torch."""

import math
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np

from twinkle import checks
from twinkle.errors import NotAvailableError, require
from twinkle.platform import Platform, timeout_seconds

_AXES = ("dp", "fsdp", "tp", "pp", "cp", "ep", "ep_fsdp")
_OVER = ("ep", "etp", "ep_fsdp", "vpp", "ulysses")  # sizes that lie over axes


def bounds(length, piece, pieces):
    """Where a piece of `length` rows begins and ends: the first ones have one more."""
    each, more = divmod(length, pieces)
    start = piece * each + min(piece, more)
    return start, start + each + (piece < more)


def ranks_in(what, given):
    """A list of the ranks that something has. InvalidError: one that is no integer of at least 0,
    or is there twice, or none."""
    ranks = [checks.integer(f"{what}: a rank", rank, least=0) for rank in given]
    told = f"{what}: ranks are {checks.short(ranks)}"
    require(0 < len(ranks) == len(set(ranks)), told, ", there must be one at least, and each once")
    return ranks


@dataclass
class DeviceMesh:
    """Global ranks arranged along named axes.

    mesh: integer array of global ranks, one dimension per name. ulysses_size, ep_size, etp_size and
    vpp_size span these axes and are no axes themselves. device_type: 'cuda', 'cpu', ..., or None:
    that of the object's group, else the machine's.
    InvalidError: ranks that are no integers or below 0, occur twice or are none, rows of them that
    differ in length; another number of names than dimensions; an axis that is unknown or named
    twice; a size that is no integer of at least 1, an ep_size that does not divide the ranks, a
    ulysses_size that does not divide dp * fsdp, an unknown device_type.
    """

    mesh: np.ndarray
    mesh_dim_names: tuple
    ep_size: int | None = None
    etp_size: int = 1
    ep_fsdp_size: int | None = None
    vpp_size: int | None = None
    ulysses_size: int | None = None
    sequence_parallel: bool = False
    device_type: str | None = None
    _groups: dict = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self):
        try:
            self.mesh = np.asarray(self.mesh)
        except ValueError:
            checks.refuse("mesh: mesh", self.mesh, "an array of ranks, with rows of one length")
        names = self.mesh_dim_names = tuple(self.mesh_dim_names or ())
        ndim = self.mesh.ndim
        one_each = f"{ndim} dimensions have {len(names)} names {names}, there must be one each"
        require(ndim == len(names), "mesh: ", one_each)
        for name in names:
            checks.one_of("mesh: an axis", name, _AXES)
        require(len(set(names)) == ndim, f"mesh: axes {names} must differ")
        ranks = ranks_in("mesh", self.mesh.flatten().tolist())
        for name in (f"{axis}_size" for axis in _OVER):
            size = checks.integer(f"mesh: {name}", getattr(self, name), least=1, none=True)
            setattr(self, name, size)
        for name, total in (("ep_size", len(ranks)), ("ulysses_size", self._data_ranks())):
            size = getattr(self, name) or 1
            require(total % size == 0, f"mesh: {name} {size} does not divide {total} ranks")
        if self.device_type is not None:
            self.device_type = Platform.of(self.device_type).device_prefix()

    @classmethod
    def from_sizes(
        cls,
        *,
        world_size=1,
        dp_size=1,
        fsdp_size=None,
        tp_size=None,
        pp_size=None,
        ulysses_size=None,
        cp_size=None,
        ep_size=None,
        etp_size=1,
        ep_fsdp_size=None,
        vpp_size=None,
        device_type=None,
        sequence_parallel=False,
    ):
        """Ranks 0..world_size-1; axes outermost first: fsdp, pp, dp, cp, tp. None leaves one out.

        world_size 1 means the product of the sizes; any other must equal it. InvalidError: it does
        not, a size is no integer of at least 1, an unknown device_type, or as the class.
        """
        sizes = {"fsdp": fsdp_size, "pp": pp_size, "dp": dp_size, "cp": cp_size, "tp": tp_size}
        sizes = {axis: size for axis, size in sizes.items() if size is not None}
        for name, size in {"world": world_size, "ep": ep_size or 1, **sizes}.items():
            checks.integer(f"mesh: {name}_size", size, least=1)
        product = math.prod(sizes.values())
        require(
            world_size in (1, product),
            f"mesh: world_size is {world_size}, but its sizes make {product} ("
            + " * ".join(f"{axis}_size {size}" for axis, size in sizes.items())
            + "): their product must be world_size, which may be left out",
        )
        if (ep_size or 1) > 1 and ep_fsdp_size is None:
            ep_fsdp_size = max(product // ep_size, 1)
        grid = np.arange(product).reshape(tuple(sizes.values()))
        over = ep_size, etp_size, ep_fsdp_size, vpp_size, ulysses_size
        return cls(grid, tuple(sizes), *over, sequence_parallel, device_type or None)

    # ---- axes

    @property
    def sizes(self):
        """{axis: ranks along it}, outermost first."""
        return dict(zip(self.mesh_dim_names, self.mesh.shape, strict=True))

    @property
    def order(self):
        """The order of groups in Megatron's words."""
        return "tp-cp-ep-dp-pp"

    def has_dim(self, name):
        """True if there is an axis of that name."""
        return name in self.mesh_dim_names

    def get_dim_size(self, name):
        """Ranks along the axis. InvalidError: no such axis."""
        there = ", ".join(self.mesh_dim_names)
        require(self.has_dim(name), f"mesh: there is no axis {name!r}; there are {there}")
        return self.sizes[name]

    def _place(self, rank=None):
        """{axis: index} of a global rank (default: this process); None when the mesh lacks it."""
        where = np.argwhere(self.mesh == (Platform.get_rank() if rank is None else rank)).tolist()
        return dict(zip(self.mesh_dim_names, where[0], strict=True)) if where else None

    @property
    def world_size(self):
        """Ranks in the mesh."""
        return int(self.mesh.size)

    @property
    def is_single_process(self):
        """True if the mesh has only one rank."""
        return self.world_size == 1

    # ---- data

    def _data_ranks(self):
        return self.sizes.get("dp", 1) * self.sizes.get("fsdp", 1)

    @property
    def data_world_size(self):
        """How many different slices of a batch there are: dp * fsdp / ulysses."""
        return self._data_ranks() // (self.ulysses_size or 1)

    @property
    def data_rank(self):
        """The slice of a batch that this process gets; None when the mesh lacks it."""
        return self.get_data_rank_from_global_rank(Platform.get_rank())

    def get_data_rank_from_global_rank(self, rank):
        """data_rank of any global rank; None when the mesh lacks it."""
        place = self._place(rank)
        if place is None:
            return None
        index = place.get("dp", 0) * self.sizes.get("fsdp", 1) + place.get("fsdp", 0)
        return index // (self.ulysses_size or 1)

    def get_slice(self, total_length, rank=None):
        """The contiguous slice of `total_length` items of data rank `rank` (default: this process).

        The first total % n slices hold one item more. InvalidError: a total_length that is no
        integer of at least 0, a rank outside 0 to data_world_size - 1, or none given while the mesh
        lacks this process.
        """
        rank = self.data_rank if rank is None else rank
        size, count = self.data_world_size, checks.integer("mesh: total_length", total_length, 0)
        checks.integer("mesh: data rank", rank, 0, size - 1)
        return slice(*bounds(count, rank, size))

    def get_collect_ranks(self):
        """One global rank per data rank, of the last pipeline stage: who returns results."""
        last = reversed(self.get_pp_last_ranks())  # the lowest of those that share one counts
        found = {self.get_data_rank_from_global_rank(rank): rank for rank in last}
        return [found[key] for key in sorted(found)]

    # ---- tensor and pipeline parallelism

    def _ranks_at(self, name, index):
        axis = self.mesh_dim_names.index(name) if self.has_dim(name) else None
        ranks = self.mesh if axis is None else np.take(self.mesh, index, axis=axis)
        return sorted(ranks.flatten().tolist())

    def get_tp_ranks(self):
        """The global ranks that share this process's tensor-parallel group. InvalidError: the mesh
        lacks this process."""
        rank = Platform.get_rank()
        found = [ranks for ranks in self._groups_over(("tp",)) if rank in ranks]
        require(found, f"mesh: rank {rank} is not in the mesh of {self.world_size} ranks")
        return found[0]

    def get_tp_last_ranks(self):
        """Sorted global ranks that are last along tp; all of them where there is no such axis."""
        return self._ranks_at("tp", -1)

    def is_tp_last_rank(self, rank=None):
        """True if a global rank (default: this process) is among get_tp_last_ranks."""
        return (Platform.get_rank() if rank is None else rank) in self.get_tp_last_ranks()

    def is_pp_first_rank(self):
        """True if this process is in the first pipeline stage."""
        return Platform.get_rank() in self.get_pp_first_ranks()

    def is_pp_last_rank(self):
        """True if this process is in the last pipeline stage."""
        return Platform.get_rank() in self.get_pp_last_ranks()

    def get_pp_stage_ranks(self, stage):
        """Sorted global ranks of a pipeline stage, from 0 on. InvalidError: no such stage."""
        checks.integer("mesh: stage", stage, 0, self.sizes.get("pp", 1) - 1)
        return self._ranks_at("pp", stage)

    def get_pp_first_ranks(self):
        """Sorted global ranks of the first pipeline stage."""
        return self._ranks_at("pp", 0)

    def get_pp_last_ranks(self):
        """Sorted global ranks of the last pipeline stage."""
        return self._ranks_at("pp", -1)

    # ---- torch.distributed

    def _groups_over(self, dims):
        """Every group of ranks that differ only in their places along `dims`, each sorted."""
        axes = [i for i, name in enumerate(self.mesh_dim_names) if name in dims]
        ends = range(self.mesh.ndim - len(axes), self.mesh.ndim)
        size = math.prod(self.mesh.shape[i] for i in axes)
        return np.sort(np.moveaxis(self.mesh, axes, ends).reshape(-1, size)).tolist()

    def create_process_group(self, dims):
        """A torch process group over the product of the named axes, whose calls wait for
        TWINKLE_DIST_TIMEOUT_SECONDS. Every rank must call it. InvalidError: no such axis, or
        torch.distributed is not initialised."""
        import torch.distributed as dist

        dims = (dims,) if isinstance(dims, str) else tuple(dims)
        for name in dims:
            self.get_dim_size(name)
        require(
            dist.is_available() and dist.is_initialized(),
            "mesh: torch.distributed is not initialised, call init_process_group first",
        )
        timeout = timedelta(seconds=timeout_seconds())
        # Every rank takes part in making every group.
        made = {tuple(r): dist.new_group(r, timeout=timeout) for r in self._groups_over(dims)}
        return next((group for ranks, group in made.items() if Platform.get_rank() in ranks), None)

    def get_dim_group(self, dims):
        """create_process_group, once per set of axes. InvalidError: as there."""
        key = (dims,) if isinstance(dims, str) else tuple(dims)
        if key not in self._groups:
            self._groups[key] = self.create_process_group(key)
        return self._groups[key]

    def to_torch_device_mesh(self):
        """torch.distributed's DeviceMesh of the same ranks and axes."""
        import torch
        from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

        forced = (Platform.forced() or "").partition(":")[0]  # torch takes no number here
        kind = forced or self.device_type or Platform.device_prefix()
        ranks = torch.from_numpy(self.mesh)
        return TorchDeviceMesh(kind, ranks, mesh_dim_names=self.mesh_dim_names)


def check_axes(mesh, what):
    """Refuses a mesh that no engine runs on. InvalidError: no DeviceMesh; NotAvailableError:
    another axis than dp and fsdp of more than one rank, or one that lies over others."""
    checks.instance(f"infra: {what}", mesh, DeviceMesh, "a DeviceMesh")
    over = {axis: getattr(mesh, f"{axis}_size") for axis in _OVER}
    for axis, size in [*mesh.sizes.items(), *over.items()]:
        if axis not in ("dp", "fsdp") and (size or 1) > 1:
            raise NotAvailableError(
                f"infra: {what} has {axis}_size {size}; this version has dp and fsdp alone: give "
                "the ranks to dp_size, or to fsdp_size where one has no memory for the model"
            )


def _add_properties(axis, doc):
    """Properties: this process's place and the ranks along an axis."""
    place = f"This process's place along {axis}, from 0; None: no such axis, or not in the mesh."
    of_place, size = (lambda mesh: (mesh._place() or {}).get(axis)), f"{axis}_size"
    of_size = property(lambda mesh: mesh.sizes.get(axis, getattr(mesh, size, None)), doc=doc)
    setattr(DeviceMesh, f"{axis}_rank", property(of_place, doc=place))
    setattr(DeviceMesh, f"{axis}_world_size", of_size)


for _axis in ("dp", "fsdp", "tp", "pp", "cp"):
    _add_properties(_axis, f"Ranks along {_axis}; None where there is no such axis.")
_add_properties("ep", "Ranks along ep; ep_size, which may be None, where there is no such axis.")
DeviceMesh.etp_world_size = property(
    lambda mesh: mesh.etp_size, doc="etp_size: ranks that share an expert."
)
