"""A loss written in Python: its value in this process, and its gradient for the engine."""

from twinkle.core import core
from twinkle.loss.base import gradient, row_arguments
from twinkle.remote.rows import cut_arguments

# Outputs that it learns through.
_OUTPUTS = ("logps", "entropies", "embeddings", "values")


def learnable(loss, outputs):
    """The entries of a ModelOutput with a gradient: all that a loss sees in training. A loss
    with require_logits learns through these alone: what it reads else is computed from them."""
    of_logits = loss.require_logits or (loss.of_labels and "values" not in outputs)
    names = ("logits",) if of_logits else _OUTPUTS
    return {name: outputs[name] for name in names if name in outputs}


def evaluate_in_parts(together, kwargs, micro_batch_size, scores):
    """The loss's value, num_tokens of each micro-batch (0: it is a mean), and the sequences, which
    hold its gradients. A loss of the whole batch has one micro-batch."""
    loss, batch, begin = together.group.loss, together.whole, 0
    values, counts, sequences = [], [], []
    named = row_arguments(loss)
    are_of_rows = cut_arguments() if named is None else {name: name in named for name in kwargs}
    for part in batch.split(None if loss.whole_batch else micro_batch_size):
        outputs = learnable(loss, part.outputs(scores, together.task.of_values, begin))
        part_kwargs = core().part_of(kwargs, begin, len(part), len(batch), are_of_rows)
        value, count, grads = gradient(loss, part.tensors(), outputs, part_kwargs)
        values.append(value)
        counts.append(count)
        sequences += part.with_gradients(grads)
        begin += len(part)
    return sum(values) / (1 if any(counts) else len(values)), counts, sequences
