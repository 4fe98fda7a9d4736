"""Other names of cross entropy: the engine's head is fused with it and chunked already."""

from twinkle import checks
from twinkle.errors import NotAvailableError
from twinkle.loss.cross_entropy import CrossEntropyLoss


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
        for name, value, without in (
            ("label_smoothing", label_smoothing, 0),
            ("softcap", softcap, None),
        ):
            if value != without:
                raise NotAvailableError(
                    f"loss: {name} is {value!r}, which LigerFusedLinearCrossEntropyLoss does not "
                    "have in this version: leave it out"
                )
        super().__init__(ignore_index, reduction)
