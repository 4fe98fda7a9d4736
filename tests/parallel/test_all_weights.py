"""Training of all weights on several processes, against one and against a loop of transformers."""

import pytest
import safetensors.torch
import torch
import transformers
from parallel.batches import batch_of
from parallel.processes import alone, torchrun

TOLERANCE = 1e-4


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


@pytest.mark.parametrize(("dp", "fsdp"), [(2, 1), (1, 2), (2, 2)])
def test_ranks_train_all_weights_as_one_process_does(dp, fsdp, tiny_llama_dir, tmp_path):
    one, several, resumed = tmp_path / "one", tmp_path / "several", tmp_path / "resumed"
    _, told, sampled = alone("all_weights_script.py", tiny_llama_dir, one)
    _, more, _ = alone("all_weights_script.py", tiny_llama_dir, one / "more", one)
    axes = {"DP": str(dp), "FSDP": str(fsdp)}
    script = ("all_weights_script.py", tiny_llama_dir)
    ranks = sorted(torchrun(dp * fsdp, *script, several, **axes))
    for _, losses, _ in ranks:
        assert losses == ranks[0][1]
        assert flat(losses) == pytest.approx(flat(told), rel=TOLERANCE)
    assert [reply for _, _, replies in ranks for reply in replies] == sampled
    assert_near(weights_in(several / "last"), weights_in(one / "last"))
    # One process goes on from there, and these from what one has saved.
    _, losses, _ = alone(*script, resumed / "one", several)
    assert flat(losses) == pytest.approx(flat(more), rel=TOLERANCE)
    for _, losses, _ in torchrun(dp * fsdp, *script, resumed / "several", one, **axes):
        assert flat(losses) == pytest.approx(flat(more), rel=TOLERANCE)
    assert_near(weights_in(resumed / "several" / "last"), weights_in(one / "more" / "last"))


def test_ranks_train_all_weights_as_transformers_does(tiny_llama_dir, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.01},
            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=1e-3,
        eps=1e-5,
    )
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
    for _, told, _ in torchrun(2, "all_weights_script.py", tiny_llama_dir, tmp_path, DP="2"):
        assert [norm for _, norm in told if norm is not None] == pytest.approx(expected, rel=1e-3)
    want = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    got = weights_in(tmp_path / "last")
    got.pop("lm_head.weight", None)
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-3, atol=1e-4)
