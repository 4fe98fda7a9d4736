"""DeviceMesh: the arithmetic on named axes, against enumeration."""

import random
from itertools import chain

import numpy as np
import pytest

from twinkle import DeviceMesh, InvalidError


@pytest.fixture
def as_rank(monkeypatch):
    return lambda rank: monkeypatch.setenv("RANK", str(rank))


@pytest.mark.parametrize(
    ("sizes", "names", "world", "data"),
    [
        ({"fsdp_size": 4, "dp_size": 2}, ("fsdp", "dp"), 8, 8),
        ({"dp_size": 2, "tp_size": 2, "pp_size": 2}, ("pp", "dp", "tp"), 8, 2),
        ({"world_size": 4, "dp_size": 4}, ("dp",), 4, 4),
        ({"tp_size": 2, "pp_size": 4}, ("pp", "dp", "tp"), 8, 1),
        ({"fsdp_size": 8, "dp_size": 1, "ep_size": 8}, ("fsdp", "dp"), 8, 8),
        ({"dp_size": 2, "fsdp_size": 2, "ulysses_size": 2}, ("fsdp", "dp"), 4, 2),
        ({"dp_size": 2, "cp_size": 2, "pp_size": 2, "vpp_size": 2}, ("pp", "dp", "cp"), 8, 2),
        ({}, ("dp",), 1, 1),
    ],
)
def test_from_sizes_of_the_documents(sizes, names, world, data):
    mesh = DeviceMesh.from_sizes(**sizes)
    assert mesh.mesh_dim_names == names
    assert (mesh.world_size, mesh.data_world_size) == (world, data)
    assert mesh.is_single_process == (world == 1)


def test_expert_fsdp_size_follows_from_the_world():
    assert DeviceMesh.from_sizes(fsdp_size=8, dp_size=1, ep_size=4).ep_fsdp_size == 2
    assert DeviceMesh.from_sizes(dp_size=2).ep_fsdp_size is None


def test_random_meshes_obey_the_rules(as_rank):
    seed = 20260301
    rng = random.Random(seed)
    for _ in range(60):
        sizes = {
            f"{axis}_size": rng.choice([1, 2, 3])
            for axis in ("fsdp", "pp", "dp", "cp", "tp")
            if axis == "dp" or rng.random() < 0.5
        }
        fsdp, dp = sizes.get("fsdp_size", 1), sizes["dp_size"]
        ulysses = rng.choice([n for n in (1, 2, 3, 6) if fsdp * dp % n == 0])
        mesh = DeviceMesh.from_sizes(**sizes, ulysses_size=ulysses)
        what = (seed, sizes, ulysses)
        assert mesh.world_size == np.prod(list(sizes.values())), what
        seen = {}
        for rank in range(mesh.world_size):
            as_rank(rank)
            place = [getattr(mesh, f"{axis}_rank") for axis in mesh.mesh_dim_names]
            assert mesh.mesh[tuple(place)] == rank, what
            for axis in ("dp", "fsdp", "tp", "pp", "cp"):
                assert (getattr(mesh, f"{axis}_rank") is None) == (not mesh.has_dim(axis)), what
                assert (getattr(mesh, f"{axis}_world_size") is None) == (not mesh.has_dim(axis))
            expected = ((mesh.dp_rank or 0) * fsdp + (mesh.fsdp_rank or 0)) // ulysses
            assert mesh.data_rank == expected, what
            assert mesh.get_data_rank_from_global_rank(rank) == expected, what
            seen.setdefault(expected, []).append(rank)
            assert rank in mesh.get_tp_ranks(), what
            assert len(mesh.get_tp_ranks()) == (mesh.tp_world_size or 1), what
            assert mesh.is_pp_first_rank() == ((mesh.pp_rank or 0) == 0), what
            assert mesh.is_pp_last_rank() == (
                (mesh.pp_rank or 0) == (mesh.pp_world_size or 1) - 1
            ), what
            assert mesh.is_tp_last_rank() == (
                (mesh.tp_rank or 0) == (mesh.tp_world_size or 1) - 1
            ), what
        assert sorted(seen) == list(range(mesh.data_world_size)), what
        collected = mesh.get_collect_ranks()
        assert [mesh.get_data_rank_from_global_rank(r) for r in collected] == sorted(seen), what
        assert set(collected) <= set(mesh.get_pp_last_ranks()), what
        stages = [mesh.get_pp_stage_ranks(s) for s in range(mesh.pp_world_size or 1)]
        assert sorted(chain(*stages)) == list(range(mesh.world_size)), what
        groups = mesh._groups_over(("dp", "tp"))
        assert sorted(chain(*groups)) == list(range(mesh.world_size)), what


def test_slices_cover_everything_once_and_differ_by_at_most_one(as_rank):
    mesh = DeviceMesh.from_sizes(dp_size=3)
    for total in range(12):
        slices = [mesh.get_slice(total, rank) for rank in range(3)]
        items = [i for s in slices for i in range(total)[s]]
        assert items == list(range(total))
        lengths = [s.stop - s.start for s in slices]
        assert sorted(lengths, reverse=True) == lengths and lengths[0] - lengths[-1] <= 1
    as_rank(2)
    assert mesh.get_slice(10) == slice(7, 10)


def test_a_rank_outside_the_mesh_has_no_place(as_rank):
    as_rank(5)
    mesh = DeviceMesh.from_sizes(dp_size=2)
    assert mesh.dp_rank is None and mesh.data_rank is None
    with pytest.raises(InvalidError, match="rank 5 is not in the mesh of 2 ranks"):
        mesh.get_tp_ranks()


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"dp_size": 0}, "dp_size is 0, it must be an integer of at least 1"),
        ({"tp_size": 2.0}, "tp_size is 2.0, it must be an integer"),
        ({"world_size": 4, "dp_size": 3}, r"is 4, but its sizes make 3 \(dp_size 3\): their"),
        ({"dp_size": 4, "ep_size": 3}, "ep_size 3 does not divide 4 ranks"),
        ({"dp_size": 4, "ulysses_size": 3}, "ulysses_size 3 does not divide 4 ranks"),
        ({"dp_size": 2, "vpp_size": 0}, "vpp_size is 0"),
        ({"device_type": "abacus"}, "device_type is 'abacus'"),
    ],
)
def test_wrong_sizes_are_named(sizes, text):
    with pytest.raises(InvalidError, match=text):
        DeviceMesh.from_sizes(**sizes)


@pytest.mark.parametrize(
    ("mesh", "names", "text"),
    [
        ([0, 1], ("dp", "tp"), "1 dimensions have 2 names"),
        ([0, 1], ("up",), "an axis is 'up', it must be 'dp', 'fsdp', "),
        ([[0, 1]], ("dp", "dp"), "must differ"),
        ([0, 0], ("dp",), r"ranks are \[0, 0\], there must be one at least, and each once"),
        ([-1, 0], ("dp",), "a rank is -1, it must be an integer of at least 0"),
        ([0.5], ("dp",), "a rank is 0.5, it must be an integer of at least 0"),
        ([True], ("dp",), "a rank is True, it must be an integer"),
        ([], ("dp",), r"ranks are \[\], there must be one at least"),
        ([[0, 1], [2]], ("dp", "tp"), r"mesh is \[\[0, 1\], \[2\]\], it must be an array of ranks"),
    ],
)
def test_wrong_meshes_are_named(mesh, names, text):
    with pytest.raises(InvalidError, match=text):
        DeviceMesh(mesh, names)


def test_missing_axes_and_stages_are_named():
    mesh = DeviceMesh.from_sizes(dp_size=2)
    with pytest.raises(InvalidError, match="there is no axis 'tp'; there are dp"):
        mesh.get_dim_size("tp")
    with pytest.raises(InvalidError, match=r"stage is 1, it must be an integer of .* at most 0"):
        mesh.get_pp_stage_ranks(1)
    with pytest.raises(InvalidError, match=r"data rank is 2, it must be .* at most 1"):
        mesh.get_slice(4, 2)
    for length in (-3, 2.5, True):
        with pytest.raises(InvalidError, match=f"total_length is {length}, it must be an integer"):
            mesh.get_slice(length, 0)
    with pytest.raises(InvalidError, match=r"torch.distributed is not initialised"):
        mesh.create_process_group("dp")


def test_order_is_megatrons():
    assert DeviceMesh.from_sizes().order == "tp-cp-ep-dp-pp"
