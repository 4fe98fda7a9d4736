"""Losses: functions of per-token log-probabilities. Write your own by subclassing Loss."""

from twinkle.errors import later
from twinkle.loss.base import FunctionLoss, Loss
from twinkle.loss.cross_entropy import CrossEntropyLoss

__all__ = ["CrossEntropyLoss", "FunctionLoss", "Loss"]

_FUSED = "logits [B, L, V] (CrossEntropyLoss gives the same without them)"
__getattr__ = later(
    __name__,
    {
        "ChunkedCrossEntropyLoss": _FUSED,
        "LigerFusedLinearCrossEntropyLoss": _FUSED,
        "MSELoss": "logits [B, L, V]",
        "GKDLoss": "a teacher's logits [B, L, V]",
        "InfonceLoss": "embedding models",
        "PPOValueLoss": "a value head",
        "torch_loss_mapping": "the losses that it maps names to",
        **dict.fromkeys(("CPOLoss", "DPOLoss", "ORPOLoss", "SimPOLoss"), "preference learning"),
        **dict.fromkeys(
            (
                "BNPOLoss", "CISPOLoss", "DRGRPOLoss", "GRPOLoss", "GSPOLoss", "PPOLoss",
                "SAPOLoss",
            ),
            "reinforcement learning",
        ),
    },
)  # fmt: skip
