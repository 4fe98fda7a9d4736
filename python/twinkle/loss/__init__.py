"""Losses: functions of per-token log-probabilities, of logits or embeddings. Write your own by
subclassing Loss."""

from twinkle.loss.base import FunctionLoss, Loss
from twinkle.loss.contrastive import InfonceLoss
from twinkle.loss.cross_entropy import (
    ChunkedCrossEntropyLoss,
    CrossEntropyLoss,
    LigerFusedLinearCrossEntropyLoss,
)
from twinkle.loss.distillation import GKDLoss, MSELoss
from twinkle.loss.label_head import ClassificationLoss, RewardLoss
from twinkle.loss.policy import (
    BNPOLoss,
    CISPOLoss,
    DRGRPOLoss,
    GRPOLoss,
    GSPOLoss,
    OPSDLoss,
    PPOLoss,
    SAPOLoss,
)
from twinkle.loss.preference import CPOLoss, DPOLoss, KTOLoss, ORPOLoss, SimPOLoss
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
    "kto": KTOLoss,
    "opsd": OPSDLoss,
    "reward": RewardLoss,
    "rm": RewardLoss,
    "classification": ClassificationLoss,
    "infonce": InfonceLoss,
}

__all__ = [  # noqa: PLE0604
    "FunctionLoss",
    "Loss",
    "torch_loss_mapping",
    *{cls.__name__: cls for cls in torch_loss_mapping.values()},
]
