"""Accuracy."""

from twinkle.metric.base import Metric


class Accuracy(Metric):
    """accuracy: the share of labels that are the model's likeliest token; correct_tokens and
    total_tokens: what it is a share of. nan where there are no labels.

    The likeliest tokens cost a pass of their own for every batch, without dropout: add it to
    evaluation alone, add_metric('Accuracy', is_training=False), where that is too slow.
    """

    needs_predictions = True

    def __init__(self, device_mesh=None, process_group=None):
        super().__init__(device_mesh, process_group)
        self.reset()

    def accumulate(self, inputs, outputs, **kwargs):
        """inputs: labels [B, L], and completion_mask [B, L] where only some are to count;
        outputs: predictions [B, L], or logits [B, L, V]."""
        del kwargs
        chosen = outputs.get("predictions")
        chosen = outputs["logits"].argmax(-1) if chosen is None else chosen
        counted = inputs["labels"] != -100
        if inputs.get("completion_mask") is not None:
            counted = counted & (inputs["completion_mask"] != 0)
        self._correct += int(((chosen == inputs["labels"]) & counted).sum())
        self._total += int(counted.sum())

    def calculate(self):
        share = self._correct / self._total if self._total else float("nan")
        return {
            "accuracy": share,
            "correct_tokens": self._correct,
            "total_tokens": self._total,
        }

    def reset(self):
        self._correct = self._total = 0
