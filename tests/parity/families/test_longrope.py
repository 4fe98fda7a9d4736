"""longrope turns a sequence's tokens by its length. One that grows beyond the line while it is
sampled is computed as a long one from its first token on, as transformers would compute it anew.

Scores, gradients, text, saves, tenants: test_families.py and its neighbours.
"""

import pytest
import torch
from parity import models, ours
from parity.families import recipes as families
from parity.families.test_bad_files import changed

LINE = 128  # two pages
COUNTS = (29, 30, 60)  # tokens behind a prompt of 100; the model gets all but the last


def sampled(made, prompt, count):
    ((tokens, logps),) = ours.greedy(made, [prompt], count)
    assert len(tokens) == count
    return tokens, torch.as_tensor(logps)


@pytest.fixture
def folder(tmp_path):
    return changed("phi3", tmp_path, fields={"original_max_position_embeddings": LINE})


def test_text_on_both_sides_of_the_line_is_that_of_the_whole_sequence_in_transformers(folder):
    model, made = models.load_reference(folder), ours.engine(folder, frozen=True)
    prompt = [3 + i % 150 for i in range(100)]
    computed, firsts = [], []
    for count in (*COUNTS, COUNTS[0]):
        before = made.stats()["num_computed_tokens"]
        tokens, logps = sampled(made, prompt, count)
        computed.append(made.stats()["num_computed_tokens"] - before)
        with torch.no_grad():
            whole = torch.tensor([[*prompt, *tokens[:-1]]])
            of_all = model(whole).logits[0, len(prompt) - 1 :].double().log_softmax(-1)
        assert of_all.argmax(-1).tolist() == tokens
        theirs = of_all.max(-1).values.float()
        torch.testing.assert_close(logps, theirs, rtol=0, atol=1e-4)
        firsts.append(logps[0].item())
    # No page of the prompt comes from the other side of the line.
    assert computed == [100 + 28, 100 + 29, 36 + 59, 36 + 28]
    assert firsts[0] == firsts[3] and firsts[1] == firsts[2]
    assert abs(firsts[0] - firsts[1]) > 1e-3


@pytest.mark.parametrize("length", [1, LINE - 1, LINE, LINE + 1, 250])
def test_scores_are_transformers_at_every_length(length, folder):
    model, made = models.load_reference(folder), ours.engine(folder, frozen=True)
    ids = [(7 * i) % families.SIZES["vocab_size"] for i in range(length + 1)]
    short = {"input_ids": [5, 7, 9], "labels": [7, 9, 11]}
    row = {"input_ids": ids[:-1], "labels": ids[1:]}
    scores, _ = ours.scores(made, [short, row, short])  # each by its own length
    with torch.no_grad():
        of_all = model(torch.tensor([ids[:-1]])).logits[0].double().log_softmax(-1)
    theirs = of_all.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].float()
    torch.testing.assert_close(scores[1], theirs, rtol=0, atol=1e-4)
    assert torch.equal(scores[0], scores[2])
