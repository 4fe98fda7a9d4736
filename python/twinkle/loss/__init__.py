"""Losses: functions of per-token log-probabilities, of logits or embeddings. Write your own by
subclassing Loss."""

from twinkle.loss.base import FunctionLoss, Loss
from twinkle.loss.contrastive import InfonceLoss
from twinkle.loss.cross_entropy import CrossEntropyLoss
from twinkle.loss.distillation import GKDLoss, MSELoss
from twinkle.loss.fused import ChunkedCrossEntropyLoss, LigerFusedLinearCrossEntropyLoss
from twinkle.loss.policy import (
    BNPOLoss,
    CISPOLoss,
    DRGRPOLoss,
    GRPOLoss,
    GSPOLoss,
    PPOLoss,
    SAPOLoss,
)
from twinkle.loss.preference import CPOLoss, DPOLoss, ORPOLoss, SimPOLoss
from twinkle.loss.value import PPOValueLoss

torch_loss_mapping = {
    "mse": MSELoss,
    "chunked_cross_entropy": ChunkedCrossEntropyLoss,
    "cross_entropy": CrossEntropyLoss,
    "liger_fused_linear_cross_entropy": LigerFusedLinearCrossEntropyLoss,
    "gkd": GKDLoss,
    "grpo": GRPOLoss,
    "ppo": PPOLoss,
    "ppo_value": PPOValueLoss,
    "gspo": GSPOLoss,
    "sapo": SAPOLoss,
    "cispo": CISPOLoss,
    "bnpo": BNPOLoss,
    "dr_grpo": DRGRPOLoss,
    "dpo": DPOLoss,
    "simpo": SimPOLoss,
    "cpo": CPOLoss,
    "orpo": ORPOLoss,
    "infonce": InfonceLoss,
}

__all__ = [
    "BNPOLoss",
    "CISPOLoss",
    "CPOLoss",
    "ChunkedCrossEntropyLoss",
    "CrossEntropyLoss",
    "DPOLoss",
    "DRGRPOLoss",
    "FunctionLoss",
    "GKDLoss",
    "GRPOLoss",
    "GSPOLoss",
    "InfonceLoss",
    "LigerFusedLinearCrossEntropyLoss",
    "Loss",
    "MSELoss",
    "ORPOLoss",
    "PPOLoss",
    "PPOValueLoss",
    "SAPOLoss",
    "SimPOLoss",
    "torch_loss_mapping",
]
