"""Models to train: each method submits operations to the C++ engine."""

from twinkle.model.base import TwinkleModel
from twinkle.model.multi_lora import MultiLoraTransformersModel
from twinkle.model.router_replay import RouterReplayAction
from twinkle.model.transformers_model import TransformersModel
from twinkle.model.value_model import TransformersValueModel
from twinkle.module_paths.megatron import MegatronModel, MultiLoraMegatronModel

__all__ = [
    "MegatronModel",
    "MultiLoraMegatronModel",
    "MultiLoraTransformersModel",
    "RouterReplayAction",
    "TransformersModel",
    "TransformersValueModel",
    "TwinkleModel",
]
