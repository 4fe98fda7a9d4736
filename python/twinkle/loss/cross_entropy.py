"""Cross entropy of the labels, by its three names."""

from twinkle import checks
from twinkle.errors import NotAvailableError
from twinkle.loss.base import by_hand
from twinkle.loss.engine import EngineLoss


class CrossEntropyLoss(EngineLoss):
    """-sum of log p(label), or its mean with reduction='mean'.

    dft: each token is also weighted with its own probability, taken as a constant. InvalidError:
    another ignore_index than -100, a reduction that is neither 'sum' nor 'mean'.
    """

    whole_batch = False

    def _call(self, inputs, outputs):
        """LossOutput of labels and logps [B, L], or logits [B, L, V]; loss_scale [B, L] weighs the
        labels. The loss is float64, num_tokens an int64 tensor, the number of labels that count, or
        0 with reduction='mean'. InvalidError: other shapes."""
        inputs, outputs = by_hand(self, inputs, outputs)
        mask, weights = inputs["labels"] != -100, inputs.get("loss_scale")
        extras = {} if weights is None else {"weights": weights}
        counted = mask if weights is None else mask & (weights != 0)
        out = self._of_labels(mask, extras, outputs["logps"])
        return {**out, "num_tokens": counted.sum() * (self.reduction == "sum")}


class ChunkedCrossEntropyLoss(CrossEntropyLoss):
    """CrossEntropyLoss's numbers. chunk_size: checked, and without effect: the engine never holds
    all logits and chooses its chunks itself. InvalidError: chunk_size below 1, and as
    CrossEntropyLoss."""

    def __init__(self, chunk_size, ignore_index=-100, reduction="mean", dft=False):
        checks.integer("loss: chunk_size", chunk_size, least=1)
        super().__init__(ignore_index, reduction, dft)


class LigerFusedLinearCrossEntropyLoss(CrossEntropyLoss):
    """CrossEntropyLoss's numbers, with task='fused_lm_ce' and without it: the engine's head is
    always fused with its cross entropy. NotAvailableError: a label_smoothing other than 0, a
    softcap (that of a model's config.json is the model's). InvalidError: as CrossEntropyLoss."""

    def __init__(self, ignore_index=-100, reduction="sum", label_smoothing=0.0, softcap=None):
        for name, value in (("label_smoothing", label_smoothing), ("softcap", softcap)):
            if value not in (0, None):
                raise NotAvailableError(
                    f"loss: {name} is {value!r}, which LigerFusedLinearCrossEntropyLoss does not "
                    "have in this version: leave it out"
                )
        super().__init__(ignore_index, reduction)
