"""Logits and embeddings in float32, and gradients through embeddings, equal transformers'."""

import numpy as np
import pytest
import torch
from parity import models, ours, reference
from parity.test_gradients import adapted, check
from torch.nn.functional import normalize

ALL = range(models.COUNT)


def base_of(model):
    """The layers below the head, of a model with adapters too."""
    return getattr(model, "base_model", model).model if hasattr(model, "peft_config") else model


def embedding(model, sequence):
    """By transformers: the last token's final hidden state, after the last norm, [width]."""
    ids = torch.as_tensor(sequence["input_ids"])[None]
    return normalize(base_of(model).model(ids).last_hidden_state[0, -1], dim=-1)


def unscored(sequences):
    return [{"input_ids": s["input_ids"]} for s in sequences]


@pytest.mark.parametrize("index", ALL, ids=models.name_of)
def test_logits_and_embeddings_equal_transformers(index):
    case = models.case(index)
    made = ours.engine(case.directory, token_budget=case.token_budget, frozen=True)
    given = unscored(case.sequences)
    result = made.forward(tenant=ours.TENANT, sequences=given, logits=True, embedding=True).result()
    for row, logits, mine in zip(given, result["logits"], result["embeddings"], strict=True):
        with torch.no_grad():
            theirs = case.reference(torch.as_tensor(row["input_ids"])[None]).logits[0]
            assert logits.shape == theirs.shape and logits.dtype == np.float32
            torch.testing.assert_close(torch.as_tensor(logits), theirs, rtol=0, atol=1e-4)
            expected = embedding(case.reference, row)
        torch.testing.assert_close(torch.as_tensor(mine), expected, rtol=0, atol=1e-5)


def loss_and_grads(model, made, sequences):
    """The gradients of a loss that reads only the embeddings: theirs by autograd, ours by the
    engine."""
    given, total = [], 0
    for sequence in unscored(sequences):
        theirs = embedding(model, sequence)
        grad = torch.randn(theirs.shape)
        given.append({**sequence, "embedding_grad": grad.numpy()})
        total = total + (theirs * grad).sum()
    model.zero_grad()
    total.backward()
    result = made.forward_backward(tenant=ours.TENANT, sequences=given, loss="LinearLoss").result()
    assert result["loss"] == pytest.approx(total.item(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("index", models.ONE_OF_EACH, ids=models.name_of)
def test_gradients_through_embeddings_equal_transformers(index):
    case = models.case(index)
    model = case.fresh_reference().requires_grad_(True)
    made = ours.engine(case.directory, token_budget=case.token_budget)
    loss_and_grads(model, made, case.sequences)
    check(ours.accumulated(made), reference.accumulated(model))


@pytest.mark.parametrize("index", models.ONE_OF_EACH, ids=models.name_of)
def test_adapters_gradients_through_embeddings_equal_peft(index, tmp_path):
    case = models.case(index)
    model = adapted(case, tmp_path)
    made = ours.engine(case.directory, token_budget=case.token_budget, directory=str(tmp_path))
    loss_and_grads(model, made, case.sequences)
    check(ours.accumulated(made), reference.named_as_ours(reference.accumulated(model)))
