"""initialize() in one process, device groups, the placement text."""

import random

import pytest

import twinkle
from twinkle import DeviceGroup, DeviceMesh, InvalidError, Platform, infra

pytestmark = pytest.mark.usefixtures("engine_built")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(infra, "_run", infra._Run())
    for name in ("RANK", "WORLD_SIZE", "TWINKLE_NAME", "TWINKLE_SESSION_ID", "TWINKLE_DEVICE"):
        monkeypatch.delenv(name, raising=False)


def test_one_process_takes_a_mesh_of_one():
    twinkle.initialize("local", global_device_mesh=DeviceMesh.from_sizes(dp_size=1), name="mine")
    assert infra.current_run().mesh.world_size == 1
    assert twinkle.is_master()


def test_a_mesh_larger_than_the_world_is_refused_and_changes_nothing():
    with pytest.raises(InvalidError, match=r"has 8 ranks \(fsdp=4, dp=2\), but 1 process is run"):
        twinkle.initialize(
            mode="local", global_device_mesh=DeviceMesh.from_sizes(fsdp_size=4, dp_size=2)
        )
    assert infra.current_run().mesh is None


def test_the_seed_fixes_the_random_streams():
    import numpy as np
    import torch

    draws = []
    for seed in (7, 7, 8):
        twinkle.initialize(seed=seed)
        draws.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert draws[0] == draws[1] != draws[2]
    stable_seed = twinkle.framework_util.stable_seed
    assert stable_seed("a", 1) == stable_seed("a", 1) != stable_seed("a", 2)
    assert 0 <= stable_seed("a") < 2**32


def test_full_determinism_switches_deterministic_kernels_on():
    import torch

    try:
        twinkle.initialize(full_determinism=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_ray_without_groups_is_refused():
    for groups in (None, []):
        with pytest.raises(InvalidError, match="mode 'ray' needs groups, such as"):
            twinkle.initialize(mode="ray", groups=groups)
    assert infra.current_run().mode == "local"


def test_ray_with_one_rank_is_this_process():
    group = DeviceGroup("sampler", [0], "GPU", gpus_per_worker=1)
    twinkle.initialize(mode="ray", nproc_per_node=1, groups=[group])
    assert infra.current_run().mode == "ray" and twinkle.is_master()
    assert infra.current_run().cluster is None


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"notifier": 3}, "notifier is 3, it must be a Notifier, or a function of a text"),
        ({"mode": "cloud"}, "mode is 'cloud'"),
        ({"seed": -1}, "seed is -1"),
        ({"nproc_per_node": 0}, "nproc_per_node is 0"),
        ({"nproc_per_node": True}, "nproc_per_node is True, it must be an integer of at least 1"),
        ({"seed": True}, "seed is True, it must be an integer of at least 0, at most 4294967295"),
        ({"seed": 2**32}, "seed is 4294967296, it must be an integer of at least 0"),
        ({"full_determinism": "no"}, "full_determinism is 'no', it must be True or False"),
        ({"name": 5}, "name is 5, it must be a text"),
        ({"groups": 5}, "groups is 5, it must be a list of DeviceGroups"),
        ({"mode": "ray", "groups": 5}, "groups is 5, it must be a list of DeviceGroups"),
        ({"groups": ["x"]}, "'x' must be a DeviceGroup"),
        ({"groups": [DeviceGroup("a", 1), DeviceGroup("a", 2)]}, "must have different names"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(InvalidError, match=text):
        twinkle.initialize(**arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("", 1), "name of a DeviceGroup is '', it must be a text that is not empty"),
        ((5, 1), "name of a DeviceGroup is 5, it must be a text"),
        (("a", 0), "ranks of group a, .* is 0, it must be an integer of at least 1"),
        (("a", None), "ranks of group a, .* is None, it must be an integer of at least 1"),
        (("a", True), "ranks of group a, .* is True, it must be an integer of at least 1"),
        (
            ("a", "xy"),
            "ranks of group a, how many or a list of them, is 'xy', it must be",
        ),
        (("a", ["x"]), "group a: a rank is 'x', it must be an integer of at least 0"),
        (("a", [0, -1]), "group a: a rank is -1, it must be an integer of at least 0"),
        (("a", []), r"group a: ranks are \[\], there must be one at least, and each once"),
        (("a", [1, 1]), r"group a: ranks are \[1, 1\], there must be one at least, and each once"),
        (("a", [0, 1], "CPU"), "group a is on CPUs, so its ranks"),
        (("a", 1, "toaster"), "device_type is 'toaster'"),
        (("a", 1, "cuda", 0), "gpus_per_worker is 0"),
        (("a", 1, "cuda", "2"), "gpus_per_worker is '2', it must be an integer of at least 1"),
    ],
)
def test_wrong_groups_are_named(arguments, text):
    with pytest.raises(InvalidError, match=text):
        DeviceGroup(*arguments)


@pytest.mark.parametrize("mode", ["local", "ray", "http"])
def test_groups_that_share_ranks_are_named_with_them(mode, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = infra.current_run()
    groups = [DeviceGroup(n, list(r), "GPU") for n, r in (("a", range(3)), ("b", [3]), ("c", [2]))]
    text = "infra: groups a and c both have rank 2: give one of them others, or make"
    with pytest.raises(InvalidError, match=text):
        twinkle.initialize(mode=mode, groups=groups)
    groups = [DeviceGroup("a", [4, 1, 0], "GPU"), DeviceGroup("b", [0, 2, 4], "GPU")]
    with pytest.raises(InvalidError, match="infra: groups a and b both have ranks 0, 4: give one"):
        twinkle.initialize(mode=mode, groups=groups)
    assert infra.current_run() is before


def test_groups_of_the_documents():
    assert DeviceGroup(name="model", ranks=4, device_type="cuda").num_ranks == 4
    assert DeviceGroup(name="model", ranks=list(range(4)), device_type="GPU").num_ranks == 4


def test_placement_is_a_box_of_80_columns_that_names_groups_and_objects():
    twinkle.initialize(groups=[DeviceGroup("model", [0], "GPU")])

    class Thing:
        pass

    infra.register(Thing(), DeviceMesh.from_sizes(dp_size=1))
    infra.register(Thing(), infra.current_run().objects[0][1])
    text = twinkle.get_device_placement()
    assert {len(line) for line in text.splitlines()} == {80}
    for part in ("group model", "GPU", "dp=1", "Thing x 2"):
        assert part in text


def test_placement_shows_what_is_on_each_group_below_it_and_the_rest_last(monkeypatch):
    monkeypatch.setenv("TWINKLE_DEVICE", "cpu")
    twinkle.initialize(
        groups=[DeviceGroup("model", [0], "GPU"), DeviceGroup("sampler", [1], "GPU")]
    )

    class Thing:
        pass

    class Other:
        pass

    class Alone:
        pass

    infra.register(Other(), DeviceMesh.from_sizes(fsdp_size=1), "sampler")
    infra.register(Thing(), DeviceMesh.from_sizes(dp_size=1), "model")
    infra.register(Other(), DeviceMesh.from_sizes(dp_size=1), "sampler")
    infra.register(Alone())
    lines = twinkle.get_device_placement().splitlines()
    assert {len(line) for line in lines} == {80}
    assert [line.strip("│ ") for line in lines[1:-1]] == [
        "group model: 1 x cpu by TWINKLE_DEVICE, not GPU, ranks [0]",
        "mesh dp=1",
        "Thing",
        "├" + "─" * 78 + "┤",
        "group sampler: 1 x cpu by TWINKLE_DEVICE, not GPU, ranks [1]",
        "mesh fsdp=1, dp=1",
        "Other",
        "mesh dp=1",
        "Other",
        "├" + "─" * 78 + "┤",
        "in no group: this process",
        "no mesh (one device)",
        "Alone",
    ]


def test_placement_tells_the_device_that_engines_run_on(gpu, monkeypatch, fake_core, tmp_path):
    from twinkle.model import TransformersModel

    group = DeviceGroup("model", [0], "cuda")
    twinkle.initialize(groups=[group])
    assert "group model: 1 x cuda that are not there" in twinkle.get_device_placement()
    gpu(None)
    assert "group model: 1 x cuda, ranks" in twinkle.get_device_placement()
    monkeypatch.setenv("TWINKLE_DEVICE", "cpu")
    model = TransformersModel(model_id=str(tmp_path), remote_group="model")
    assert "on cpu; adapters: none, all weights train" in repr(model)
    text = twinkle.get_device_placement()
    assert "group model: 1 x cpu by TWINKLE_DEVICE, not cuda, ranks" in text
    assert "no mesh (one device) on cpu" in text and "TransformersModel" in text
    monkeypatch.delenv("TWINKLE_DEVICE")
    TransformersModel(model_id=str(tmp_path), device_mesh=DeviceMesh.from_sizes(dp_size=1))
    assert "mesh dp=1 on cuda" in twinkle.get_device_placement()


def test_an_unreadable_rank_is_named(monkeypatch):
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(InvalidError, match="RANK is 'first', it must be an integer"):
        twinkle.is_master()


@pytest.fixture
def gpu(monkeypatch):
    """gpu(None): a machine with a GPU, until gpu('why not')."""

    def set_to(why):
        monkeypatch.setattr(Platform, "why_not_on", staticmethod(lambda device="cuda": why or ""))
        default = ("cpu" if why else "cuda", "")
        monkeypatch.setattr(Platform, "default_device", staticmethod(lambda: default))

    set_to("this machine has no CUDA device")
    return set_to


def mesh(kind=None):
    return DeviceMesh.from_sizes(dp_size=1, device_type=kind)


def test_the_device_follows_the_mesh_else_the_group_else_the_machine(gpu):
    group = DeviceGroup("model", 1, "GPU")
    assert infra.device_of(None) == infra.device_of(mesh()) == "cpu"
    assert infra.device_of(mesh("cpu"), group) == "cpu"
    gpu(None)
    assert infra.device_of(None) == infra.device_of(mesh()) == "cuda"
    assert infra.device_of(mesh("gpu")) == infra.device_of(None, group) == "cuda"
    assert infra.device_of(mesh("cpu"), group) == "cpu"
    assert infra.device_of(mesh(), DeviceGroup("few", 1, "CPU")) == "cpu"
    assert infra.device_of(mesh(), DeviceGroup("any", 1)) == "cuda"
    with pytest.raises(twinkle.NotAvailableError, match="has device_type 'npu', this version runs"):
        infra.device_of(mesh("npu"))


def test_a_device_that_is_not_there_is_refused_with_who_asked_for_it(gpu, monkeypatch):
    group = DeviceGroup("model", 1, "GPU")
    for asked, text in (
        ((mesh("cuda"),), "device_mesh has device_type 'cuda', but this machine has no CUDA"),
        ((mesh(), group), "group model has device_type 'cuda', but .*, or set TWINKLE_DEVICE=cpu"),
    ):
        with pytest.raises(InvalidError, match=text):
            infra.device_of(*asked)
    monkeypatch.setenv("TWINKLE_DEVICE", "cpu")
    assert infra.device_of(mesh("cuda"), group) == "cpu", "whatever a script asks for"
    monkeypatch.setenv("TWINKLE_DEVICE", "cuda")
    with pytest.raises(InvalidError, match="TWINKLE_DEVICE is 'cuda', but this machine has no"):
        infra.device_of(None)
    for text in ("abacus", "CPU", "gpu", "cuda:", "cuda:x"):  # as the program takes it
        monkeypatch.setenv("TWINKLE_DEVICE", text)
        with pytest.raises(InvalidError, match=f"TWINKLE_DEVICE is '{text}', it must be 'cpu', 'c"):
            infra.device_of(None)


def test_the_environment_numbers_a_card_as_the_program_takes_it(
    gpu, monkeypatch, fake_core, tmp_path
):
    from twinkle.model import TransformersModel

    monkeypatch.setenv("TWINKLE_DEVICE", "cuda:1")
    gpu("the machine has 1")
    with pytest.raises(InvalidError, match="TWINKLE_DEVICE is 'cuda:1', but the machine has 1: "):
        infra.device_of(None)
    gpu(None)
    assert infra.device_of(mesh("cpu")) == "cuda:1"
    TransformersModel(model_id=str(tmp_path))
    text = twinkle.get_device_placement()
    assert "group default: 1 x cuda:1, ranks" in text
    assert "no mesh (one device) on cuda:1" in text


def test_a_card_that_no_engine_can_run_on_leaves_the_cpu_and_one_line_in_the_log(
    monkeypatch, fake_core, logged
):
    def old(device):
        return f"device is '{device}', an old card of this test"

    monkeypatch.setattr(fake_core, "why_not_on", old)
    monkeypatch.setattr(fake_core, "default_device", lambda: ("cpu", old("cuda")))
    assert infra.device_of(None) == infra.device_of(mesh()) == "cpu"
    assert logged == ["infra: device is 'cuda', an old card of this test; using the CPU"]
    with pytest.raises(InvalidError, match="has device_type 'cuda', but device is 'cuda', an old"):
        infra.device_of(mesh("cuda"))
    monkeypatch.setattr(fake_core, "why_not_on", lambda _: "")
    assert infra.device_of(mesh("cuda")) == "cuda"


def test_processes_that_would_each_compute_alone_are_told_so(gpu, logged, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    infra.place(object(), DeviceMesh.from_sizes(dp_size=2))
    assert logged == []
    infra.place(object())
    assert logged == ["infra: object has no device_mesh, so each of 2 processes computes by "
                      "itself, of its own rows alone: initialize(global_device_mesh=DeviceMesh."
                      "from_sizes(dp_size=2)) lets them share the work"]  # fmt: skip


def test_an_object_that_cannot_be_placed_is_not_listed():
    before = list(infra.current_run().objects)
    for asked in (mesh("npu"), DeviceMesh.from_sizes(dp_size=2)):
        with pytest.raises(twinkle.NotAvailableError if asked.world_size == 1 else InvalidError):
            infra.place(object(), asked)
    assert infra.current_run().objects == before


def test_objects_of_threads_are_listed_with_their_own_devices(monkeypatch):
    class Slow:
        pass

    def of(asked, group=None):
        if asked.device_type == "cpu":  # another is built meanwhile
            infra.register(Slow())
        return asked.device_type

    monkeypatch.setattr(infra, "device_of", of)
    infra.place(object(), mesh("cpu"))
    listed = [(made.name, made.device) for made in infra.current_run().objects]
    assert listed == [("Slow", None), ("object", "cpu")]


def test_a_sampler_runs_where_its_model_does(gpu, fake_core, tmp_path):
    from twinkle.model import TransformersModel
    from twinkle.sampler import TorchSampler

    model = TransformersModel(model_id=str(tmp_path))
    gpu(None)
    assert TorchSampler(model=model, device_mesh=mesh())._device == "cpu"
    with pytest.raises(InvalidError, match=r"device_type 'cuda', but the model .* runs on 'cpu'"):
        TorchSampler(model=model, device_mesh=mesh("cuda"))


def test_a_remote_group_is_one_of_those_that_initialize_was_given(gpu, fake_core, tmp_path):
    from twinkle.dataloader import DataLoader
    from twinkle.model import TransformersModel

    path = str(tmp_path)
    TransformersModel(model_id=path, remote_group="any")  # all is in this process
    twinkle.initialize(groups=[DeviceGroup("model", 1), DeviceGroup("sampler", 1)])
    TransformersModel(model_id=path, remote_group="model")
    for make in (
        lambda: TransformersModel(model_id=path, remote_group="trainer"),
        lambda: DataLoader([{"i": 1}], batch_size=1, remote_group="trainer"),
    ):
        text = "remote_group of .* is 'trainer', it must be a group of initialize: model, sampler"
        with pytest.raises(InvalidError, match=text):
            make()


@pytest.mark.parametrize("given", [{"gpus_per_worker": 2}, {"visible_devices": "0,1"}])
def test_what_several_devices_would_need_is_refused_by_name(given):
    with pytest.raises(twinkle.NotAvailableError, match=f"{next(iter(given))} of group a is"):
        DeviceGroup("a", 1, "cuda", **given)


def test_a_mesh_of_fewer_ranks_than_processes_is_to_grow(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    text = r"has 1 rank \(dp=1\), but 2 processes are running: .* mesh of 2, as with dp_size=2$"
    with pytest.raises(InvalidError, match=text):
        twinkle.initialize(global_device_mesh=DeviceMesh.from_sizes(dp_size=1))
