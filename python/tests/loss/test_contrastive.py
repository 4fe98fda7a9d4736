"""InfoNCE against a loop over groups."""

import math

import pytest
import torch

from twinkle import InvalidError, NotAvailableError
from twinkle.loss import InfonceLoss

# Groups of a positive with 2, 0 and 1 negatives.
MARKS = [1, 0, 0, 0, 1, 0, 1, 0, 0]
GROUPS = [(0, [1, 2, 3]), (4, [5]), (6, [7, 8])]
EVEN = [1, 0, 0, 1, 0, 0, 1, 0, 0]
EVEN_GROUPS = [(0, [1, 2]), (3, [4, 5]), (6, [7, 8])]


def embeddings(seed=1):
    """Vectors of norm 1 in three dimensions, so that some negatives are nearer than positives."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    return (x / x.norm(dim=1, keepdim=True)).requires_grad_()


def by_hand(x, groups, temperature=0.1, **known):
    """known: use_batch, margin, qq, dd."""
    x, total = x.detach(), 0.0
    use_batch, margin = known.get("use_batch", True), known.get("margin")
    for anchor, (positive, *negatives) in groups:
        near = float(x[anchor] @ x[positive])
        docs = [d for _, documents in groups for d in documents] if use_batch else (
            [positive, *negatives]
        )  # fmt: skip
        others = [float(x[anchor] @ x[d]) for d in docs if d != positive]
        if known.get("qq"):
            others += [float(x[anchor] @ x[a]) for a, _ in groups if a != anchor]
        if margin is not None:
            others = [s for s in others if s <= near + margin]
        if known.get("dd"):
            others += [float(x[positive] @ x[d]) for d in docs if d != positive]
        terms = [math.exp(s / temperature) for s in [near, *others]]
        total -= math.log(terms[0] / sum(terms))
    return total / len(groups)


OPTIONS = {
    "default": ({}, {}),
    "temperature": ({"temperature": 0.5}, {"temperature": 0.5}),
    "own": ({"use_batch": False}, {"use_batch": False}),
    "masked": ({"mask_fake_negative": True, "fake_neg_margin": 0.05}, {"margin": 0.05}),
    "own masked": (
        {"use_batch": False, "mask_fake_negative": True},
        {"use_batch": False, "margin": 0.1},
    ),
    "qq": ({"include_qq": True}, {"qq": True}),
    "dd": ({"include_dd": True}, {"dd": True}),
    "all": (
        {"include_qq": True, "include_dd": True, "mask_fake_negative": True},
        {"qq": True, "dd": True, "margin": 0.1},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("marks", "groups"), [(MARKS, GROUPS), (EVEN, EVEN_GROUPS)])
@pytest.mark.parametrize("seed", [1, 2])
def test_infonce_is_its_formula(name, marks, groups, seed):
    options, known = OPTIONS[name]
    x, inputs = embeddings(seed), {"labels": torch.tensor(marks)}
    out = InfonceLoss(**options)(inputs, {"embeddings": x})
    assert out["loss"].item() == pytest.approx(by_hand(x, groups, **known), rel=1e-9)
    assert out["num_tokens"] == 0
    assert torch.autograd.grad(out["loss"], x)[0].any()


def test_masks_matter_in_these_batches():
    values = {by_hand(embeddings(), GROUPS, **known) for _, known in OPTIONS.values()}
    assert len(values) == len(OPTIONS)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_hard_negatives_are_cut_off_or_repeated_in_turn(number):
    groups = [
        (a, [d[0], *[d[1:][i % len(d[1:])] for i in range(number)]])
        for a, d in ((0, [1, 2, 3]), (4, [5, 6]), (7, [8, 9]))
    ]
    x = torch.nn.functional.normalize(torch.randn(10, 3, dtype=torch.float64), dim=1)
    inputs = {"labels": torch.tensor([1, 0, 0, 0, 1, 0, 0, 1, 0, 0])}
    out = InfonceLoss(hard_negatives=number)(inputs, {"embeddings": x})["loss"]
    assert out.item() == pytest.approx(by_hand(x, groups), rel=1e-9)


def test_a_label_may_stand_at_the_first_of_padded_positions():
    padded = torch.full((9, 4), -100)
    padded[:, 0] = torch.tensor(MARKS)
    x = embeddings()
    one, other = (
        InfonceLoss()({"labels": marks}, {"embeddings": x})["loss"].item()
        for marks in (padded, torch.tensor(MARKS)[:, None])
    )
    assert one == other == pytest.approx(by_hand(x, GROUPS))


@pytest.mark.parametrize(
    ("marks", "text"),
    [
        ([0, 1, 0], "InfonceLoss: the first sequence has the label 0, but a group begins with an"),
        ([0, 0, 0], "the first sequence has the label 0"),
        ([1, 1, 0], r"inputs\[0\] is an anchor without a positive after it"),
        ([1, 0, 1], r"inputs\[2\] is an anchor without a positive after it"),
        ([1, 0, 2], r"needs one label for each sequence, \[1\] for an anchor"),
        ([[1, 5], [0, 5]], "needs one label for each sequence"),
        ([[-100, 1], [-100, 1]], "needs one label for each sequence"),
    ],
)
def test_labels_that_make_no_groups_are_named(marks, text):
    inputs = {"labels": torch.tensor(marks)}
    with pytest.raises(InvalidError, match=text):
        InfonceLoss()(inputs, {"embeddings": embeddings()[: len(marks)]})


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"temperature": 0}, InvalidError, "temperature is 0, it must be a number above 0"),
        ({"fake_neg_margin": 0}, InvalidError, "fake_neg_margin is 0"),
        ({"hard_negatives": 0}, InvalidError, "hard_negatives is 0"),
        ({"use_batch": 1}, InvalidError, "use_batch is 1, it must be True or False"),
        ({"use_batch": False, "include_qq": True}, InvalidError, "they need use_batch=True"),
        ({"use_batch": False, "include_dd": True}, InvalidError, "they need use_batch=True"),
        ({"process_group": object()}, NotAvailableError, "process_group gathers embeddings of"),
    ],
)
def test_an_option_that_cannot_be_is_named(options, error, text):
    with pytest.raises(error, match=text):
        InfonceLoss(**options)


def test_a_group_without_negatives_to_repeat_is_named():
    with pytest.raises(InvalidError, match=r"hard_negatives is 2, but the group of inputs\[4\]"):
        InfonceLoss(hard_negatives=2)({"labels": torch.tensor(MARKS)}, {"embeddings": embeddings()})
