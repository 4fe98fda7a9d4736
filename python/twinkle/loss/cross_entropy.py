"""Cross entropy of the labels."""

from twinkle import checks
from twinkle.errors import require
from twinkle.loss.base import Loss
from twinkle.loss.engine import computed
from twinkle.loss.labels import check_ignore_index


class CrossEntropyLoss(Loss):
    """-sum of log p(label), or its mean with reduction='mean'; computed by the engine.

    dft: each token is also weighted with its own probability, taken as a constant. InvalidError:
    another ignore_index than -100, a reduction that is neither 'sum' nor 'mean'.
    """

    engine_name = "CrossEntropyLoss"
    row_arguments = ()

    def __init__(self, ignore_index=-100, reduction="sum", dft=False):
        check_ignore_index(ignore_index)
        require(
            isinstance(reduction, str) and reduction in ("sum", "mean"),
            f"loss: reduction is {reduction!r}, it must be 'sum' or 'mean'",
        )
        self.reduction = reduction
        self.dft = checks.flag("loss: dft", dft)

    def engine_options(self):
        return {"reduction": self.reduction, "dft": self.dft}

    def __call__(self, inputs, outputs):
        """LossOutput of labels and logps [B, L]; loss_scale [B, L] weighs the labels. The loss is
        float64, num_tokens the labels that count, or 0 with reduction='mean'."""
        mask = inputs["labels"] != -100
        counted, weights = mask, None
        if "loss_scale" in inputs:
            weights = inputs["loss_scale"][mask].double()
            counted = mask & (inputs["loss_scale"] != 0)
        value = computed(self, inputs, outputs, mask, {}, weights)
        return {"loss": value, "num_tokens": 0 if self.reduction == "mean" else int(counted.sum())}
