"""Log-probabilities and entropies in float32 equal transformers' within 1e-4."""

import pytest
import torch
from parity import models, ours, reference

ALL = range(models.COUNT)
TOLERANCE = 1e-4


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


def test_the_drawn_models_cover_every_family_and_feature():
    drawn = [models.draw(i) for i in ALL]
    marks = [set(d.marks) for d in drawn]
    assert len(drawn) >= 40
    for family in models.FAMILIES:
        mine = [m for m in marks if family in m]
        for rope in models.ROPES:
            assert any(rope in m for m in mine)
        special = "windowed" if family != "llama" else "biased"
        for mark in ("tied", "untied", special):
            assert any(mark in m for m in mine)
        fields = [d.fields for d in drawn if d.family == family]
        heads = [(f["num_attention_heads"], f["num_key_value_heads"]) for f in fields]
        assert any(1 < kv < q for q, kv in heads), "grouped heads"
        for name in ("vocab_size", "intermediate_size", "hidden_size"):
            assert any(f[name] % 2 for f in fields), f"an odd {name}"


@pytest.mark.parametrize("index", ALL, ids=models.name_of)
def test_packed_sequences_score_as_each_alone_in_transformers(index):
    case = models.case(index)
    made = ours.engine(case.directory, token_budget=case.token_budget, frozen=True)
    with torch.no_grad():
        theirs = [reference.scores(case.reference, s) for s in case.sequences]
    logps, entropies = ours.scores(made, case.sequences, entropy=True)
    for i, (expected_logps, expected_entropies) in enumerate(theirs):
        close(logps[i], expected_logps)
        close(entropies[i], expected_entropies)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 2.0])
def test_temperature_divides_the_logits(temperature):
    case = models.case(0)
    made = ours.engine(case.directory, frozen=True)
    logps, entropies = ours.scores(made, case.sequences, temperature=temperature, entropy=True)
    for i, sequence in enumerate(case.sequences):
        with torch.no_grad():
            expected = reference.scores(case.reference, sequence, temperature)
        close(logps[i], expected[0])
        close(entropies[i], expected[1])


def test_bfloat16_over_all_models_is_as_near_to_float32_as_transformers_bfloat16():
    """The mean over all scored tokens of |log p in bfloat16 - log p in float32 (transformers)|."""
    mine, theirs = [], []
    for index in ALL:
        case = models.case(index)
        made = ours.engine(case.directory, precision="bf16", frozen=True)
        half = models.load_reference(case.directory, torch.bfloat16)
        logps, _ = ours.scores(made, case.sequences)
        for i, sequence in enumerate(case.sequences):
            with torch.no_grad():
                truth = reference.logps(case.reference, sequence)
                other = reference.logps(half, sequence)
            mine.append((logps[i] - truth)[truth != 0].abs())
            theirs.append((other - truth)[truth != 0].abs())
    mine, theirs = torch.cat(mine).mean().item(), torch.cat(theirs).mean().item()
    print(f"mean |error| of log p: ours {mine:.5f}, transformers {theirs:.5f}")
    assert mine <= theirs
