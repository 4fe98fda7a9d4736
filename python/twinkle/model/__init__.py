"""Models to train: each method submits operations to the C++ engine."""

from twinkle.errors import later
from twinkle.model.base import TwinkleModel
from twinkle.model.multi_lora import MultiLoraTransformersModel
from twinkle.model.router_replay import RouterReplayAction
from twinkle.model.transformers_model import TransformersModel
from twinkle.model.value_model import TransformersValueModel

__all__ = [
    "MultiLoraTransformersModel",
    "RouterReplayAction",
    "TransformersModel",
    "TransformersValueModel",
    "TwinkleModel",
]

__getattr__ = later(
    __name__,
    {
        "MegatronModel": "Megatron",
        "MultiLoraMegatronModel": "Megatron",
    },
)
