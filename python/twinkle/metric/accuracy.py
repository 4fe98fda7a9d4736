"""Accuracy."""

from collections.abc import Mapping

from twinkle.errors import require
from twinkle.metric.base import MeanMetric


class Accuracy(MeanMetric):
    """accuracy: the share of labels that are the model's likeliest token; correct_tokens and
    total_tokens: what it is a share of. Nothing where there are no labels.

    The likeliest tokens cost a pass of their own for every batch, without dropout: add it to
    evaluation alone, add_metric('Accuracy', is_training=False), where that is too slow.
    """

    needs_predictions = True

    def accumulate(self, inputs, outputs, **kwargs):
        """inputs: labels [B, L] or [L], and completion_mask of that shape where only some are to
        count; outputs: predictions of that shape, or logits [..., V]; without both, nothing counts.
        InvalidError: another shape, a list."""
        del kwargs
        require(
            isinstance(inputs, Mapping), "metric: Accuracy takes one dict of inputs, not a list"
        )
        chosen, labels = outputs.get("predictions"), inputs["labels"]
        if chosen is None and outputs.get("logits") is None:
            return
        chosen = outputs["logits"].argmax(-1) if chosen is None else chosen
        require(
            chosen.shape == labels.shape,
            f"metric: Accuracy has predictions of the shape {list(chosen.shape)}, but labels of "
            f"{list(labels.shape)}: there must be one for each label",
        )
        counted = labels != -100
        if inputs.get("completion_mask") is not None:
            counted = counted & (inputs["completion_mask"] != 0)
        self._add("accuracy", int(((chosen == labels) & counted).sum()), int(counted.sum()))

    def calculate(self):
        correct, total = self._sums.get("accuracy", (0, 0))
        if not total:
            return {}
        return {"accuracy": correct / total, "correct_tokens": correct, "total_tokens": total}
