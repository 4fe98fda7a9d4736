"""What can't be right is refused before a group is made: without MASTER_ADDR making one says so."""

import json
import subprocess
import sys

import pytest
from parallel.processes import environment

SCRIPT = """
import json, os, sys
import twinkle
from twinkle import DeviceMesh
from twinkle.dataloader import DataLoader
from twinkle.metric import CompletionRewardMetric
from twinkle.model import TransformersModel

model = sys.argv[1]
pair = DeviceMesh.from_sizes(dp_size=2)


def text_of(call, **environment):
    os.environ |= environment
    try:
        call()
        return "taken"
    except twinkle.errors.TwinkleError as error:
        return f"{type(error).__name__}: {error}"


def in_groups(call):
    twinkle.initialize(groups=[twinkle.DeviceGroup("mine", 2, "cpu")])
    call()


told = {
    "axes": [
        text_of(lambda: TransformersModel(model, device_mesh=DeviceMesh.from_sizes(**sizes)))
        for sizes in ({"dp_size": 2, "tp_size": 2}, {"pp_size": 2}, {"cp_size": 2},
                      {"dp_size": 2, "ep_size": 2}, {"dp_size": 2, "ulysses_size": 2},
                      {"dp_size": 2, "vpp_size": 2}, {"dp_size": 2, "etp_size": 2},
                      {"dp_size": 2, "ep_fsdp_size": 2})
    ] + [
        text_of(lambda: TransformersModel(model, device_mesh=DeviceMesh(ranks, names)))
        for ranks, names in (([0, 1], ("ep",)), ([[0, 1]], ("dp", "ep")))
    ],
    "another size": text_of(lambda: twinkle.initialize(
        global_device_mesh=DeviceMesh.from_sizes(dp_size=3))),
    "a smaller one": text_of(lambda: twinkle.initialize(
        global_device_mesh=DeviceMesh.from_sizes(dp_size=1))),
    "below 0": text_of(lambda: DeviceMesh([-1, 0], ("dp",))),
    "twice": text_of(lambda: DeviceMesh([0, 0], ("dp",))),
    "remote_group": text_of(
        lambda: in_groups(lambda: TransformersModel(model, remote_group="other"))),
    "unknown axis": text_of(lambda: DeviceMesh([0, 1], ("rows",))),
    "double axis": text_of(lambda: DeviceMesh([[0, 1]], ("dp", "dp"))),
    "batch_size": text_of(lambda: DataLoader([{}] * 8, batch_size=3, device_mesh=pair)),
    "not in it": text_of(lambda: TransformersModel(model, device_mesh=DeviceMesh([2, 3], ("dp",)))),
    "nothing to shard": text_of(lambda: TransformersModel(
        model, device_mesh=pair, fsdp_config={"sharding_strategy": "FULL_SHARD"})),
    "a flag": text_of(lambda: TransformersModel(
        model, device_mesh=pair, ddp_config={"static_graph": "banana"})),
    "both": text_of(lambda: TransformersModel(
        model, device_mesh=DeviceMesh.from_sizes(fsdp_size=2), gathered_bytes=1,
        fsdp_config={"reshard_after_forward": False})),
    "no launcher": text_of(lambda: TransformersModel(model, device_mesh=pair)),
    "metric": text_of(lambda: CompletionRewardMetric(device_mesh=pair).calculate()),
    "timeout": text_of(lambda: TransformersModel(model, device_mesh=pair),
                       TWINKLE_DIST_TIMEOUT_SECONDS="0"),
    "npu": text_of(lambda: TransformersModel(model, device_mesh=DeviceMesh.from_sizes(
        dp_size=2, device_type="npu")), TWINKLE_DEVICE="", TWINKLE_DIST_TIMEOUT_SECONDS="9"),
    "rank": text_of(lambda: pair.data_rank, RANK="-1"),
}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tiny_llama_dir):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tiny_llama_dir],
        env=environment(WORLD_SIZE="2", RANK="0", MASTER_ADDR=""),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_axes_that_this_version_does_not_have(told):
    axes = ("tp", "pp", "cp", "ep", "ulysses", "vpp", "etp", "ep_fsdp", "ep", "ep")
    for text, axis in zip(told["axes"], axes, strict=True):
        assert text.startswith("NotAvailableError: ") and f"{axis}_size 2" in text


def test_a_device_that_no_engine_runs_on(told):
    assert told["npu"].startswith("NotAvailableError: infra: device_mesh has device_type 'npu', ")
    assert "set TWINKLE_DEVICE=cpu" in told["npu"]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            "another size",
            "has 3 ranks (dp=3), but 2 processes are running: start "
            "one process per rank with torchrun --nproc_per_node=3, or make a mesh of 2, as "
            "with dp_size=2",
        ),
        (
            "a smaller one",
            "has 1 rank (dp=1), but 2 processes are running: start "
            "one process per rank with torchrun --nproc_per_node=1, or make a mesh of 2, as "
            "with dp_size=2",
        ),
        ("below 0", "ranks are [-1, 0], but -1 is none: ranks count from 0"),
        (
            "nothing to shard",
            "sharding_strategy is 'FULL_SHARD', but device_mesh has no ranks along fsdp",
        ),
        ("a flag", "ddp_config: static_graph is 'banana', it must be True or False"),
        ("twice", "ranks are [0, 0], there must be one at least, and each once"),
        (
            "remote_group",
            "remote_group of TransformersModel is 'other', it must be a group of initialize: mine",
        ),
        ("unknown axis", "axis 'rows' is unknown, it must be one of dp, fsdp"),
        ("double axis", "axes ('dp', 'dp') must differ"),
        ("batch_size", "batch_size is 3"),
        ("not in it", "device_mesh does not hold this process's rank"),
        ("both", "gathered_bytes is given, but fsdp_config says how much stays gathered, too"),
        ("no launcher", "MASTER_ADDR is not set, but the mesh has several ranks"),
        ("metric", "MASTER_ADDR is not set, but the mesh has several ranks"),
        ("timeout", "TWINKLE_DIST_TIMEOUT_SECONDS is '0', it must be a number from 1 to 86400"),
        ("rank", "RANK is '-1', it must be an integer of at least 0"),
    ],
)
def test_what_can_not_be_right(what, text, told):
    assert told[what].startswith("InvalidError: ") and text in told[what]
