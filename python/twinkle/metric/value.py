"""Metrics of a critic."""

from twinkle import checks
from twinkle.loss.labels import at_labels, scored
from twinkle.metric.base import Metric


class PPOValueMetric(Metric):
    """Means over all labels since the last calculate, if the loss got old_values and returns:

    train/value_mean and train/return_mean; train/value_clip_ratio: the share of labels at which the
    clipped term of PPOValueLoss is the greater one, so that they learn nothing;
    train/explained_variance: 1 - var(R - V) / var(R), nan where all R are equal;
    train/advantage_mean and train/advantage_std: of the advantages that the loss was given, or of
    R - old. Deviations are those of the labels themselves, divided by their number.

    epsilon: PPOValueLoss's. InvalidError: it is not above 0.
    """

    reads = "values"

    def __init__(self, device_mesh=None, process_group=None, epsilon=0.2):
        super().__init__(device_mesh, process_group)
        self.epsilon = checks.number("metric: epsilon", epsilon, above=0, infinite=True)
        self.reset()

    def check(self, inputs, **given):
        """InvalidError: as PPOValueLoss, of what is given."""
        _read(inputs, **given)

    def accumulate(self, inputs, outputs, **given):
        """inputs: labels [B, L]; outputs: values [B, L]; the others as PPOValueLoss has them."""
        read = None if outputs.get("values") is None else _read(inputs, **given)
        if read is None:
            return
        mask, old, wanted, advantages = read
        values = outputs["values"].double()[mask].detach()
        clipped = values.clamp(old - self.epsilon, old + self.epsilon)
        stopped = ((clipped - wanted) ** 2 > (values - wanted) ** 2).double()
        for part, more in zip(self._parts, (values, wanted, advantages, stopped), strict=True):
            part.append(more)

    def calculate(self):
        import torch

        if not any(map(len, self._parts[0])):
            return {}
        values, wanted, advantages, stopped = map(torch.cat, self._parts)
        left, all_of_it = (float(x.var(correction=0)) for x in (wanted - values, wanted))
        return {
            "train/value_mean": float(values.mean()),
            "train/return_mean": float(wanted.mean()),
            "train/value_clip_ratio": float(stopped.mean()),
            "train/explained_variance": 1 - left / all_of_it if all_of_it else float("nan"),
            "train/advantage_mean": float(advantages.mean()),
            "train/advantage_std": float(advantages.std(correction=0)),
        }

    def reset(self):
        self._parts = [], [], [], []  # values, returns, advantages, those that are clipped


def _read(inputs, old_values=None, returns=None, advantages=None, **others):
    """The mask of labels [B, L], and of each label its old value, return and advantage [N]; None
    where the loss was given no old values or returns."""
    del others
    if old_values is None or returns is None:
        return None
    mask = scored(inputs, "metric: PPOValueMetric")
    old = at_labels("old_values", old_values, inputs, mask)
    wanted = at_labels("returns", returns, inputs, mask)
    if advantages is None:
        return mask, old, wanted, wanted - old
    return mask, old, wanted, at_labels("advantages", advantages, inputs, mask)
