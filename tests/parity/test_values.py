"""Values, every weight's gradient through them, and ten steps of PPO's value loss equal those of
transformers' token classifier with one label; what is saved is one."""

import numpy as np
import pytest
import torch
import transformers
from decay import decay_groups
from parity import models, ours, reference
from parity.test_gradients import check
from parity.test_logits_and_embeddings import unscored

from twinkle.model import TransformersValueModel

CASES = [0, 12, 1, 13, 2, 14]  # every family, tied and not
STEPS = 10


def classifier(directory, **options):
    return transformers.AutoModelForTokenClassification.from_pretrained(
        directory, num_labels=1, dtype=torch.float32, attn_implementation="eager", **options
    ).eval()  # its dropout is not ours


def written(case, directory):
    """The case's layers below a random head, in memory and in `directory`."""
    torch.manual_seed(case.index)
    model = classifier(case.directory)
    with torch.no_grad():
        model.score.weight.normal_(std=model.score.in_features**-0.5)
        model.score.bias.normal_()
    model.save_pretrained(directory)
    return model


def values_of(model, ids):
    return model(torch.as_tensor(ids)[None]).logits[0, :, 0]


@pytest.mark.parametrize("index", CASES, ids=models.name_of)
def test_values_and_every_weights_gradient_equal_transformers(index, tmp_path):
    case = models.case(index)
    model = written(case, tmp_path)
    made = ours.engine(tmp_path, token_budget=case.token_budget, value_head=True)
    given, total = unscored(case.sequences), 0
    result = made.forward(tenant=ours.TENANT, sequences=given, logits=True).result()
    for row, mine in zip(given, result["logits"], strict=True):
        theirs = values_of(model, row["input_ids"])
        assert mine.shape == (len(theirs), 1)
        expected = theirs.detach()
        torch.testing.assert_close(torch.as_tensor(mine)[:, 0], expected, rtol=0, atol=1e-4)
        grad = torch.randn(len(theirs))
        row["logits_grad"] = grad.numpy()
        total = total + (theirs * grad).sum()
    total.backward()
    result = made.forward_backward(tenant=ours.TENANT, sequences=given, loss="LinearLoss").result()
    assert result["loss"] == pytest.approx(total.item(), rel=1e-4, abs=1e-4)
    grads = ours.accumulated(made)
    assert {"score.weight", "score.bias"} <= grads.keys() and "lm_head.weight" not in grads
    check(grads, reference.accumulated(model))


def scored(sequences):
    return [{name: s[name] for name in ("input_ids", "labels")} for s in sequences]


def labelled(sequence):
    return torch.as_tensor(sequence["labels"]) != reference.IGNORED


def their_curve(model, sequences, returns):
    """PPO's clipped value loss by its formula, with the values of before each step as old ones."""
    optimizer = torch.optim.AdamW(decay_groups(model), lr=3e-3, weight_decay=0.01)
    losses, old = [], None
    for step in range(STEPS):
        rows = [values_of(model, s["input_ids"])[labelled(s)] for s in sequences]
        values = torch.cat(rows)
        if step % 2 == 0:  # every other step has stale ones, so that some are clipped
            old = values.detach()
        low = torch.minimum(torch.maximum(values, old - 0.05), old + 0.05)
        loss = 0.5 * torch.maximum((values - returns) ** 2, (low - returns) ** 2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def our_curve(model, sequences, returns):
    model.set_loss("PPOValueLoss", epsilon=0.05)
    model.set_optimizer("AdamW", lr=3e-3, weight_decay=0.01)
    model.add_metric("PPOValueMetric", is_training=True, epsilon=0.05)
    losses, clipped, old = [], 0, None
    for step in range(STEPS):
        if step % 2 == 0:
            old = model.forward_only(inputs=sequences)["values"]
        out = model.forward_backward(inputs=sequences, old_values=old, returns=returns)
        model.clip_grad_and_step(max_grad_norm=1.0)
        clipped += model.calculate_metric()["train/value_clip_ratio"]
        losses.append(out["loss"])
    assert clipped > 0
    return losses


@pytest.mark.parametrize("index", [0, 13, 2], ids=models.name_of)
def test_steps_of_a_new_head_and_all_weights(index, tmp_path):
    case = models.case(index)
    sequences = scored(case.sequences)
    rng = np.random.default_rng(index)
    returns = [rng.normal(1, 1, int(labelled(s).sum())).tolist() for s in sequences]
    theirs = classifier(case.directory)
    torch.nn.init.zeros_(theirs.score.weight)
    torch.nn.init.zeros_(theirs.score.bias)
    theirs.model.embed_tokens.padding_idx = None
    mine = our_curve(
        TransformersValueModel(model_id=case.directory, mixed_precision="no"), sequences, returns
    )
    assert mine[-1] < 0.8 * mine[0]
    flat = torch.tensor([value for row in returns for value in row])
    assert mine == pytest.approx(their_curve(theirs, sequences, flat), rel=0, abs=1e-3)


@pytest.mark.parametrize("index", CASES, ids=models.name_of)
def test_a_saved_one_is_a_token_classifier_and_comes_back(index, tmp_path):
    case = models.case(index)
    sequences = scored(case.sequences)
    model = TransformersValueModel(model_id=case.directory, mixed_precision="no")
    model.set_optimizer("AdamW", lr=1e-2)
    zeros = model.forward_only(inputs=sequences)["values"]
    model.forward_backward(inputs=sequences, old_values=zeros, returns=[1] * len(sequences))
    model.clip_grad_and_step()
    mine = model.forward_only(inputs=sequences)["values"]
    path = model.save("critic", output_dir=str(tmp_path))
    theirs, report = transformers.AutoModelForTokenClassification.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    assert theirs.config.num_labels == 1
    for sequence, row in zip(sequences, mine, strict=True):
        with torch.no_grad():
            expected = values_of(theirs.eval(), sequence["input_ids"])
        expected = torch.where(labelled(sequence), expected, 0.0)
        torch.testing.assert_close(row[: len(expected)], expected, rtol=0, atol=1e-4)
    again = TransformersValueModel(model_id=path, mixed_precision="no")
    assert torch.equal(again.forward_only(inputs=sequences)["values"], mine)
