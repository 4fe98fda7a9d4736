"""A script's values for each label, aligned with the labels."""

import numpy as np
import pytest
import torch
from loss_batches import COUNTS, LENGTHS, batch, drawn_logps, ragged

from twinkle import InvalidError
from twinkle.loss.labels import at_labels, scored, spread

VALUES = drawn_logps(3).detach()


def padded_to(n):
    out = torch.full((4, n), 99.0)
    out[:, :6] = torch.where(scored(batch(), "x"), VALUES, 99.0)
    return out


FORMS = {
    "of labels": ragged(VALUES),
    "of labels, tensors": [torch.tensor(row, dtype=torch.float64) for row in ragged(VALUES)],
    "of labels, arrays": [np.array(row) for row in ragged(VALUES)],
    "of positions": [row[:n].tolist() for row, n in zip(padded_to(6), LENGTHS, strict=True)],
    "as padded": padded_to(6),
    "padded to more": padded_to(9),
    "of both": [ragged(VALUES)[0], *padded_to(7)[1:].numpy()],
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_an_extra_lands_on_the_labels(form):
    mask = scored(batch(), "x")
    out = spread("old_logps", FORMS[form], batch(), mask)
    torch.testing.assert_close(out, VALUES.double())
    assert out.dtype == torch.float64 and not out.requires_grad
    flat = at_labels("old_logps", FORMS[form], batch(), mask)
    torch.testing.assert_close(flat, VALUES.double()[mask])


def sampled(width):
    """As SampledSequence.logprobs: (token, log p) of each label, behind those of other tokens."""
    labels = ragged(batch()["labels"])
    return [
        [
            [(900 + k, -9.0) for k in range(width - 1)] + [(label, p)]
            for label, p in zip(*row, strict=True)
        ]
        for row in zip(labels, ragged(VALUES), strict=True)
    ]


@pytest.mark.parametrize("width", [1, 3])
def test_log_probabilities_as_the_sampler_gives_them_land_on_their_labels(width):
    mask = scored(batch(), "x")
    out = spread("old_logps", sampled(width), batch(), mask)
    torch.testing.assert_close(out, VALUES.double())


def test_sampled_log_probabilities_of_other_tokens_are_refused():
    mask = scored(batch(), "x")
    shorter, other = sampled(1), sampled(1)
    shorter[1] = shorter[1][1:]
    other[0][1] = [(777, -1.0)]
    others = sampled(1)
    others[0][1] = [(777, -1.0), (778, -2.0)]
    for given, text in (
        (shorter, r"old_logps of inputs\[1\] has the log-prob.* 5 sampled tokens for 6 labels"),
        (other, r"inputs\[0\] has at 1 the log-prob.* of token 777, but the label is 5: train on"),
        (others, r"has at 1 the log-prob.* of tokens \[777, 778\], but the label is 5: train on"),
    ):
        with pytest.raises(InvalidError, match=text):
            spread("old_logps", given, batch(), mask)


@pytest.mark.parametrize(
    "given", [[1, 2.5, -3, 4], torch.tensor([1, 2.5, -3, 4]), np.array([[1], [2.5], [-3], [4]])]
)
def test_one_number_is_that_of_all_labels_of_a_sequence(given):
    out = spread("advantages", given, batch(), scored(batch(), "x"))
    for row, value, count in zip(ragged(out), [1, 2.5, -3, 4], COUNTS, strict=True):
        assert row == [value] * count
    assert out.count_nonzero() == sum(COUNTS)


def test_without_an_attention_mask_positions_are_those_of_the_padded_batch():
    inputs = {"labels": batch()["labels"]}
    mask = scored(inputs, "x")
    torch.testing.assert_close(spread("n", padded_to(6), inputs, mask), VALUES.double())
    with pytest.raises(InvalidError, match=r"n of inputs\[3\] has 5 entries, .* 3 labels, or .* 6"):
        spread("n", [*FORMS["of positions"][:2], [1.0], [1.0] * 5], inputs, mask)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([1, 2, 3], "^loss: n has 3 entries for 4 sequences, they must be equally many"),
        (1.0, "^loss: n is 1.0, it must be a list or tensor with an entry for each sequence"),
        (torch.tensor(1.0), "^loss: n is tensor.*, it must be a list or tensor"),
        ({"a": 1}, "^loss: n is .*, it must be a list or tensor"),
        ("text", "^loss: n is 'text', it must be a list or tensor"),
        ([1, 2, None, 4], r"^loss: n of inputs\[2\] is None, it must be a number or a list of"),
        ([1, 2, 3, [1, None, 2]], r"^loss: n of inputs\[3\] is \[1, None, 2\], it must be"),
        ([1, 2, 3, [1, 2]], r"inputs\[3\] has 2 entries, .* each of its 3 labels, .* 5 positions"),
        ([1, 2, 3, [1, 2, 3, 4]], r"inputs\[3\] has 4 entries, it must have one for each of"),
        ([1, 2, 3, []], r"^loss: n of inputs\[3\] has 0 entries"),
        ([1, 2, 3, [[1, 2], [3, 4]]], r"inputs\[3\] has shape \[2, 2\], it must be one number"),
        ([1, float("nan"), 3, 4], r"^loss: n of inputs\[1\] has an entry that is nan or inf"),
        ([1, 2, [float("-inf")], 4], r"^loss: n of inputs\[2\] has an entry that is nan or inf"),
    ],
)
def test_an_extra_of_another_form_is_named(given, text):
    with pytest.raises(InvalidError, match=text):
        spread("n", given, batch(), scored(batch(), "x"))


def test_labels_count_where_they_are_attended_to_and_have_weight():
    inputs = batch()
    inputs["attention_mask"][1, 2:] = 0
    inputs["loss_scale"] = torch.ones(4, 6)
    inputs["loss_scale"][0, 1] = 0
    assert scored(inputs, "x").sum(-1).tolist() == [2, 2, 1, 3]
    inputs["loss_scale"][3, 1] = 0.5
    with pytest.raises(InvalidError, match=r"^loss: GRPOLoss weighs no labels, .* is 0\.5 some"):
        scored(inputs, "loss: GRPOLoss")
