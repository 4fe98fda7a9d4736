"""Processes that share the base, by fsdp_size and dp_size, against one: the same bits."""

import json

import pytest
from parallel.processes import alone, sha256, together


@pytest.fixture(scope="module")
def alone_told(tiny_llama_dir, tmp_path_factory):
    """(the folder of one process, what it tells)."""
    out = tmp_path_factory.mktemp("one")
    return out, alone("scripts/sharded.py", tiny_llama_dir, out)


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
    ranks = sorted(together(dp * fsdp, "scripts/sharded.py", tiny_llama_dir, several, **more))
    assert [losses for _, losses, _ in ranks] == [told] * (dp * fsdp)
    assert [reply for _, _, replies in ranks for reply in replies] == sampled
    assert sha256(several / "last") == sha256(one / "last")


def test_ranks_give_the_bits_of_one_to_models_with_sinks_softcaps_and_longrope(tmp_path):
    """With experts of mxfp4 and two ropes, too; with dp_size=2 and with fsdp_size=2."""
    families = pytest.importorskip("parity.families.recipes")
    packed, _, _ = pytest.importorskip("parity.families.test_gpt_oss").packed_in(tmp_path)
    folders = [packed, *(families.case(name).directory for name in ("gemma2", "gemma3", "phi3"))]
    one, several = tmp_path / "one", tmp_path / "several"
    _, expected = alone("scripts/families.py", one, *folders)
    ranks = together(2, "scripts/families.py", several, *folders)
    for mesh in ("dp", "fsdp"):
        told = [of[mesh] for _, of in sorted(ranks, key=lambda rank: rank[0][mesh])]
        for i, (losses, sampled) in enumerate(expected["dp"]):
            assert [of[i][0] for of in told] == [losses] * 2, (mesh, folders[i])
            assert [reply for of in told for reply in of[i][1]] == sampled, (mesh, folders[i])
            mine, theirs = several / mesh / f"{i}/last", one / "dp" / f"{i}/last"
            assert sha256(mine) == sha256(theirs), (mesh, folders[i])
