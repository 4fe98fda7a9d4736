"""Metrics of preference losses."""

from twinkle import checks
from twinkle.loss.preference import Replies
from twinkle.metric.base import Metric

# As the arguments of Replies.reference_sums.
_REFERENCES = ("ref_outputs", "ref_logps", "ref_chosen_logps", "ref_rejected_logps")


class DPOMetric(Metric):
    """Means over pairs of a chosen and a rejected reply, adjacent in a batch, since the
    last calculate: logps/chosen and logps/rejected, the sums of log p over a reply's labels. Where
    the loss was given a reference, also logps/ref_chosen and logps/ref_rejected; rewards/chosen and
    rewards/rejected, beta times what a reply gained over the reference; rewards/margins, their
    difference; rewards/accuracies, the percentage of pairs whose margin is above 0.

    InvalidError: beta not above 0; check and accumulate: as twinkle.loss.DPOLoss.
    """

    reads = "logps"

    def __init__(self, device_mesh=None, process_group=None, beta=0.1):
        super().__init__(device_mesh, process_group)
        self.beta = checks.number("metric: beta", beta, above=0)
        self.reset()

    def check(self, inputs, **kwargs):
        """InvalidError: as DPOLoss, of the pairs and of a reference that is given."""
        import torch

        _read(inputs, torch.zeros(inputs["labels"].shape), kwargs)

    def accumulate(self, inputs, outputs, **kwargs):
        """inputs: labels [B, L]; outputs: logps [B, L]; kwargs: the reference, as for DPOLoss."""
        if outputs.get("logps") is None:  # embeddings have none
            return
        sums, ref_sums = _read(inputs, outputs["logps"], kwargs)
        self._add("logps", "", sums)
        if ref_sums is None:
            return
        self._add("logps", "ref_", ref_sums)
        rewards = self.beta * (sums - ref_sums)
        self._add("rewards", "", rewards)
        margins = rewards[::2] - rewards[1::2]
        self._add_values("rewards/margins", margins)
        self._add_values("rewards/accuracies", 100.0 * (margins > 0))

    def _add(self, group, prefix, of_replies):
        self._add_values(f"{group}/{prefix}chosen", of_replies[::2])
        self._add_values(f"{group}/{prefix}rejected", of_replies[1::2])

    def _add_values(self, name, values):
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + float(values.sum()), count + len(values)

    def calculate(self):
        return {name: total / count for name, (total, count) in self._sums.items()}

    def reset(self):
        self._sums = {}


def _read(inputs, logps, kwargs):
    """The sums [B] of log p and of the reference's, None without one."""
    references = [kwargs.get(name) for name in _REFERENCES]
    replies = Replies(inputs, "metric: DPOMetric")
    sums = replies.sums(logps)
    if all(given is None for given in references):
        return sums, None
    return sums, replies.reference_sums(*references)
