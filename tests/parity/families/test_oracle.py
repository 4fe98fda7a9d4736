"""The oracle, which bfloat16 is measured from, says what transformers says; and deepseek's first
model as its checkpoints have it, for which transformers has no class: the oracle alone.

Tolerances are those of the other files: log-probabilities 1e-4, gradients 1e-4 relative.
"""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from parity import ours, reference
from parity.families import recipes as families
from parity.families.layouts import deepseek_config, renamed, stacked
from parity.families.oracle import Oracle
from parity.families.test_families import ALL, tensors_in
from parity.test_gradients import check


@pytest.mark.parametrize("name", ALL)
def test_the_oracle_says_what_transformers_says_in_float32(name):
    case = families.case(name)
    oracle = Oracle(case.directory)
    for sequence in case.sequences:
        ids = sequence["input_ids"]
        with torch.no_grad():
            theirs = case.reference(torch.tensor([ids])).logits[0].double().log_softmax(-1)
            mine = oracle.logits(ids).log_softmax(-1)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)


def with_shared_experts(folder):
    """deepseek as on the hub: shared experts without a gate, a dense first layer, weights of no
    particular sum. Of qwen2_moe's tensors, which have besides a gate and biases."""
    twin = families.case("qwen2_moe").directory
    tensors = {
        key: value
        for key, value in tensors_in(twin).items()
        if not key.endswith(".bias") and ".shared_expert_gate." not in key
    }
    tensors = renamed(tensors, [(".shared_expert.", ".shared_experts.")])
    fields = json.loads((Path(twin) / "config.json").read_text())
    config = deepseek_config({"num_local_experts": fields["num_experts"], **fields})
    config |= {"first_k_dense_replace": 1, "n_shared_experts": 2, "norm_topk_prob": False}
    config |= {k: fields[k] for k in ("moe_intermediate_size", "num_experts_per_tok")}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_deepseeks_shared_experts_and_its_dense_layer_are_those_of_the_oracle(tmp_path):
    folder = with_shared_experts(tmp_path)
    oracle, sequences = Oracle(folder), families.case("qwen2_moe").sequences
    assert families.far_from_ties(folder, sequences)
    for value in oracle.weights.values():
        value.requires_grad_(True)
    loss, expected = 0, []
    for s in sequences:
        labels = torch.tensor(s["labels"])
        scored = labels != reference.IGNORED
        logps = oracle.logps(s["input_ids"], labels.clamp(min=0)) * scored
        loss = loss - (logps * torch.tensor(s["weights"], dtype=torch.float64)).sum()
        expected.append(logps.detach().float())
    loss.backward()
    made = ours.engine(folder)
    for mine, theirs in zip(ours.scores(made, sequences)[0], expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)
    grads, value = ours.gradients(made, sequences)
    assert value == pytest.approx(loss.item(), rel=1e-5)
    given = {
        key: torch.zeros_like(w).float() if w.grad is None else w.grad.float()
        for key, w in oracle.weights.items()
    }
    assert grads.keys() == stacked(given).keys()
    check(grads, stacked(given))
