"""The values that data, models and samplers exchange."""

from twinkle.data_format.lora import LoraConfig
from twinkle.data_format.message import (
    Message,
    Tool,
    ToolCall,
    Trajectory,
    pack_value,
    user_data_get,
)
from twinkle.data_format.output import InputFeature, LossOutput, ModelOutput
from twinkle.data_format.sampling import SampledSequence, SampleResponse, SamplingParams

__all__ = [
    "InputFeature",
    "LoraConfig",
    "LossOutput",
    "Message",
    "ModelOutput",
    "SampleResponse",
    "SampledSequence",
    "SamplingParams",
    "Tool",
    "ToolCall",
    "Trajectory",
    "pack_value",
    "user_data_get",
]
