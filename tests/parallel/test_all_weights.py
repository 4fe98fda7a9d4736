"""Training of all weights on several processes, against one and against a loop of transformers."""

import functools
from pathlib import Path
from typing import NamedTuple

import pytest
import safetensors.torch
import torch
from decay import decay_groups
from parallel.batches import batch_of
from parallel.processes import alone, together

TOLERANCE = 1e-4
SCRIPT = "scripts/all_weights.py"


def weights_in(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def assert_near(got, want):
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(
            got[name], want[name], rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text, n=name: n + text
        )


def flat(told):
    return [x for pair in told for x in pair if x is not None]


class One(NamedTuple):
    """One process's losses and norms (`told`) and samples of four batches, and its losses and norms
    of the four that follow (`more`). Its weights are in `out`/last and in `out`/more/last."""

    out: Path
    told: list
    sampled: list
    more: list


@pytest.fixture(scope="module")
def one(tiny_llama_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("one")
    ((_, told, sampled),) = alone(SCRIPT, tiny_llama_dir, out)
    ((_, more, _),) = alone(SCRIPT, tiny_llama_dir, out / "more", out)
    return One(out, told, sampled, more)


@pytest.fixture(scope="module")
def several(one, tiny_llama_dir, tmp_path_factory):
    """several(dp, fsdp): (folder, what the ranks tell of four batches, and of the four that follow
    on what one process has saved), in the order of data ranks."""

    @functools.cache
    def ran(dp, fsdp):
        out, axes = tmp_path_factory.mktemp("several"), {"DP": str(dp), "FSDP": str(fsdp)}
        told = together(dp * fsdp, SCRIPT, tiny_llama_dir, out, "", out / "more", one.out, **axes)
        return out, *map(sorted, zip(*told, strict=True))

    return ran


@pytest.mark.parametrize(("dp", "fsdp"), [(2, 1), (1, 2), (2, 2)])
def test_ranks_train_all_weights_as_one_process_does(
    dp, fsdp, one, several, tiny_llama_dir, tmp_path
):
    out, ranks, resumed = several(dp, fsdp)
    for _, losses, _ in ranks:
        assert losses == ranks[0][1]
        assert flat(losses) == pytest.approx(flat(one.told), rel=TOLERANCE)
    assert [reply for _, _, replies in ranks for reply in replies] == one.sampled
    assert_near(weights_in(out / "last"), weights_in(one.out / "last"))
    # One process goes on from there, and these from what one has saved.
    ((_, losses, _),) = alone(SCRIPT, tiny_llama_dir, tmp_path, out)
    assert flat(losses) == pytest.approx(flat(one.more), rel=TOLERANCE)
    for _, losses, _ in resumed:
        assert flat(losses) == pytest.approx(flat(one.more), rel=TOLERANCE)
    assert_near(weights_in(out / "more/last"), weights_in(one.out / "more/last"))


def test_ranks_train_all_weights_as_transformers_does(several, tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    optimizer = torch.optim.AdamW(decay_groups(model), lr=1e-3, eps=1e-5, weight_decay=0.01)
    expected = []
    for begin in (0, 2):
        rows = [row for step in (begin, begin + 1) for row in batch_of(step)]
        num_tokens = sum(int((row["labels"] != -100).sum()) for row in rows)
        for row in rows:
            logits = model(torch.tensor(row["input_ids"])[None]).logits[0]
            loss = torch.nn.functional.cross_entropy(
                logits, torch.tensor(row["labels"]), reduction="sum"
            )
            (loss / num_tokens).backward()
        expected.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
    out, ranks, _ = several(2, 1)
    for _, told, _ in ranks:
        assert [told[1][1], told[3][1]] == pytest.approx(expected, rel=1e-3)
    want = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    got = weights_in(out / "last")
    got.pop("lm_head.weight", None)
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-3, atol=1e-4)
