"""Metrics of preference losses."""

from twinkle import checks
from twinkle.loss.preference import Replies
from twinkle.metric.base import MeanMetric


class RewardMetric(MeanMetric):
    """Means over pairs of a chosen and a rejected reply, adjacent in a batch, since the last
    calculate, of the scores that a head of one label gives: rewards/chosen, rewards/rejected,
    rewards/margins, their difference, and rewards/accuracies, the percentage of pairs whose margin
    is above 0. Outputs without such scores count nothing."""

    reads = "logits"
    needs_inputs = False

    def accumulate(self, inputs, outputs, **kwargs):
        """outputs: logits [B, 1]."""
        del inputs, kwargs
        scores = outputs.get("logits")
        if scores is None or scores.shape[1:] != (1,):
            return
        chosen, rejected = scores.detach().double().reshape(-1, 2).T
        self._add("rewards/chosen", chosen, None)
        self._add("rewards/rejected", rejected, None)
        self._add("rewards/margins", chosen - rejected, None)
        self._add("rewards/accuracies", 100.0 * (chosen > rejected), None)


class DPOMetric(MeanMetric):
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

    def check(self, inputs, **kwargs):
        """InvalidError: as DPOLoss, of the pairs and of a reference that is given."""
        Replies(inputs, "metric: DPOMetric").reference_sums(**kwargs)

    def accumulate(self, inputs, outputs, **kwargs):
        """inputs: labels [B, L]; outputs: logps [B, L]; kwargs: the reference, as for DPOLoss."""
        if outputs.get("logps") is None:  # embeddings have none
            return
        replies = Replies(inputs, "metric: DPOMetric")
        sums, ref_sums = replies.sums(outputs["logps"]), replies.reference_sums(**kwargs)
        self._add_pairs("logps/", sums)
        if ref_sums is None:
            return
        self._add_pairs("logps/ref_", ref_sums)
        rewards = self.beta * (sums - ref_sums)
        self._add_pairs("rewards/", rewards)
        margins = rewards[::2] - rewards[1::2]
        self._add("rewards/margins", margins, None)
        self._add("rewards/accuracies", 100.0 * (margins > 0), None)

    def _add_pairs(self, prefix, of_replies):
        self._add(f"{prefix}chosen", of_replies[::2], None)
        self._add(f"{prefix}rejected", of_replies[1::2], None)
