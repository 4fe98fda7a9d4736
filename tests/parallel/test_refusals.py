"""Wrong arguments are refused before a group is made: without MASTER_ADDR making one fails."""

import pytest
from parallel.processes import alone


@pytest.fixture(scope="module")
def told(tiny_llama_dir):
    return alone("scripts/refused.py", tiny_llama_dir, WORLD_SIZE="2", RANK="0", MASTER_ADDR="")


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
        ("below 0", "a rank is -1, it must be an integer of at least 0"),
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
        ("unknown axis", "an axis is 'rows', it must be 'dp', 'fsdp', "),
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
