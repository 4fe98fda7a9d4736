"""A loss written in Python: its value in this process, and its gradient for the engine."""

import numpy as np

from twinkle.loss.base import gradient, row_arguments
from twinkle.model.arguments import slice_kwargs
from twinkle.remote.rows import cut_arguments

# Outputs that it learns through: the names of LinearLoss's extras, d loss / d it.
_EXTRAS = {"logps": "grad", "entropies": "entropy_grad"}


def with_values(batch, result):
    """The engine's result for sequences without labels, of a model with a value head: its logits
    [tokens, 1] are values, 0 where the batch has no label."""
    rows = zip(batch.sequences, result["logits"], strict=True)
    values = [np.where(_labelled(sequence), logits[:, 0], 0) for sequence, logits in rows]
    return {"values": values, "embeddings": []}


def _labelled(sequence):
    labels = sequence.get("labels")
    return np.zeros(len(sequence["input_ids"]), bool) if labels is None else labels != -100


def with_extras(loss, batch, kwargs, sequences):
    """The batch's sequences with what a loss of the engine reads besides their labels."""
    columns = {
        name: batch.unpadded(values) if values.ndim == 2 else values.float()[:, None].numpy()
        for name, values in loss.engine_inputs(batch.tensors(), **kwargs).items()
    }
    return [
        {**sequence, "extras": {name: rows[i] for name, rows in columns.items()}}
        for i, sequence in enumerate(sequences)
    ]


def learnable(loss, outputs):
    """The entries of a ModelOutput with a gradient: all that a loss sees in training. A loss
    with require_logits learns through these alone: what it reads else is computed from them."""
    of_logits = loss.require_logits or (loss.of_labels and "values" not in outputs)
    names = ("logits",) if of_logits else (*_EXTRAS, "embeddings", "values")
    return {name: outputs[name] for name in names if name in outputs}


def outputs_of(part, scores, rows=slice(None)):
    """Tensors of a part of a batch from the engine's scores, whose `rows` the part is: embeddings
    [B, D] where they were asked for, values [B, L] of a value head, else logps and, where asked
    for, entropies [B, L] and logits [B, L, V]; logits [B, num_labels] alone of a head of labels."""
    if scores.get("label_logits"):
        import torch

        return {"logits": torch.from_numpy(np.stack(scores["label_logits"][rows]))}
    if scores["embeddings"]:
        import torch

        return {"embeddings": torch.from_numpy(np.stack(scores["embeddings"][rows]))}
    names = (*_EXTRAS, "logits", "values")
    return {name: part.padded(scores[name][rows]) for name in names if scores.get(name)}


def evaluate_in_parts(loss, batch, kwargs, micro_batch_size, scores):
    """The loss's value, num_tokens of each micro-batch (0: it is a mean), and the sequences, which
    hold its gradients. A loss of the whole batch has one micro-batch."""
    micro_batch_size = None if loss.whole_batch else micro_batch_size
    values, counts, sequences, begin = [], [], [], 0
    named = row_arguments(loss)
    are_of_rows = cut_arguments() if named is None else {name: name in named for name in kwargs}
    for part in batch.split(micro_batch_size):
        outputs = learnable(loss, outputs_of(part, scores, slice(begin, begin + len(part))))
        part_kwargs = slice_kwargs(kwargs, begin, len(part), len(batch), are_of_rows)
        value, count, grads = gradient(loss, part.tensors(), outputs, part_kwargs)
        values.append(value)
        counts.append(count)
        sequences += _with_gradients(part, grads)
        begin += len(part)
    return sum(values) / (1 if any(counts) else len(values)), counts, sequences


def _with_gradients(part, grads):
    sequences, name = part.unscored(), "logits_grad"
    if "embeddings" in grads:
        rows, name = grads["embeddings"].numpy(), "embedding_grad"
    elif "values" in grads:
        each = zip(part.sequences, part.unpadded(grads["values"]), strict=True)
        rows = [np.where(_labelled(sequence), row, 0) for sequence, row in each]
    elif "logits" in grads:
        rows = [row.reshape(-1) for row in part.unpadded(grads["logits"])]
    else:
        sequences, name, names = part.sequences, "extras", [_EXTRAS[name] for name in grads]
        each = zip(*(part.unpadded(grad) for grad in grads.values()), strict=True)
        rows = [dict(zip(names, row, strict=True)) for row in each]
    return [{**one, name: row} for one, row in zip(sequences, rows, strict=True)]
