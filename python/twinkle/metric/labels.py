"""Metrics that the engine computes of the labels that count."""

from itertools import takewhile

from twinkle.loss.labels import at_labels, scored
from twinkle.loss.preference import Replies
from twinkle.metric.engine import EngineMetric


class LabelMetric(EngineMetric):
    """Base of the engine's metrics of the labels that count, for each of which there are outputs
    and, where the loss was called with them, arguments."""

    def check(self, inputs, **kwargs):
        """InvalidError: a loss_scale of neither 0 nor 1, and as twinkle.loss.labels of what is
        given."""
        self._read(inputs, **kwargs)

    def accumulate(self, inputs, outputs, **kwargs):
        """inputs: labels [B, L]; outputs: [B, L] each; kwargs as the loss got them; the class says
        which. Without the output that it `reads` nothing counts. InvalidError: as check."""
        if not outputs or outputs.get(self.reads) is None:
            return
        mask, rows = self._read(inputs, **kwargs)
        names = [name for name in self._engine.outputs if outputs.get(name) is not None]
        rows |= {name: outputs[name][mask] for name in names}
        rows |= {"labels": inputs["labels"][mask], "positions": mask.nonzero()[:, 1]}
        self._engine.accumulate(rows, mask.sum(-1).tolist())

    def _read(self, inputs, **kwargs):
        """(mask [B, L] of the labels, {argument: its entries for them}), of the arguments before
        the first that is missing."""
        mask = scored(inputs, f"metric: {type(self).__name__}")
        there = takewhile(lambda name: kwargs.get(name) is not None, self._engine.arguments)
        names = there if mask.any() else ()
        return mask, {name: at_labels(name, kwargs[name], inputs, mask) for name in names}


class DPOMetric(LabelMetric):
    """Means over pairs of a chosen and a rejected reply, adjacent in a batch, since the
    last calculate: logps/chosen and logps/rejected, the sums of log p over a reply's labels. Where
    the loss was given a reference, also logps/ref_chosen and logps/ref_rejected; rewards/chosen and
    rewards/rejected, beta times what a reply gained over the reference; rewards/margins, their
    difference; rewards/accuracies, the percentage of pairs whose margin is above 0.

    accumulate takes labels [B, L] of the inputs, logps [B, L] of the outputs, and the reference, as
    for DPOLoss. InvalidError: beta not above 0; check and accumulate: as twinkle.loss.DPOLoss, of
    the pairs and of a reference that is given.
    """

    reads = "logps"

    def __init__(self, device_mesh=None, process_group=None, beta=0.1):
        super().__init__(device_mesh, process_group, beta=beta)

    def _read(self, inputs, **kwargs):
        replies = Replies(inputs, "metric: DPOMetric")
        return replies.mask, {"ref_sums": replies.reference_sums(**kwargs)}


class PPOValueMetric(LabelMetric):
    """Means over all labels since the last calculate, if the loss got old_values and returns:

    train/value_mean and train/return_mean; train/value_clip_ratio: the share of labels at which the
    clipped term of PPOValueLoss is the greater one, so that they learn nothing;
    train/explained_variance: 1 - var(R - V) / var(R), nan where all R are equal;
    train/advantage_mean and train/advantage_std: of the advantages that the loss was given, or of
    R - old. Deviations are those of the labels themselves, divided by their number.

    accumulate takes labels [B, L] of the inputs, values [B, L] of the outputs, and old_values,
    returns and advantages as PPOValueLoss has them.
    epsilon: PPOValueLoss's. InvalidError: it is not above 0; check and accumulate: as PPOValueLoss,
    of what is given.
    """

    reads = "values"

    def __init__(self, device_mesh=None, process_group=None, epsilon=0.2):
        super().__init__(device_mesh, process_group, epsilon=epsilon)
