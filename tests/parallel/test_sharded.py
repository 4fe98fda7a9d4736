"""Processes that share the base, by fsdp_size and dp_size, against one: the same bits."""

import json

import pytest
from parallel.processes import alone, sha256, torchrun


@pytest.fixture(scope="module")
def alone_told(tiny_llama_dir, tmp_path_factory):
    """(the folder of one process, what it tells)."""
    out = tmp_path_factory.mktemp("one")
    return out, alone("sharded_script.py", tiny_llama_dir, out)


@pytest.mark.parametrize(
    ("dp", "fsdp", "config"),
    [
        (1, 2, {}),
        (1, 2, {"gathered_bytes": 100_000}),
        (2, 2, {"sharding_strategy": "HYBRID_SHARD"}),
    ],
)
def test_ranks_that_share_the_base_give_every_process_the_bits_of_one(
    dp, fsdp, config, alone_told, tiny_llama_dir, tmp_path
):
    several = tmp_path / "several"
    one, (_, told, sampled) = alone_told
    more = {"DP": str(dp), "FSDP": str(fsdp), "FSDP_CONFIG": json.dumps(config)}
    ranks = sorted(torchrun(dp * fsdp, "sharded_script.py", tiny_llama_dir, several, **more))
    assert [losses for _, losses, _ in ranks] == [told] * (dp * fsdp)
    assert [reply for _, _, replies in ranks for reply in replies] == sampled
    assert sha256(several / "last") == sha256(one / "last")
