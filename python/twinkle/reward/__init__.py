"""Rewards: numbers that say how good replies are. Write your own by subclassing Reward."""

from twinkle.errors import later
from twinkle.reward.base import Reward

__all__ = ["Reward"]

_RL = "reinforcement learning"
_MEDIA = "reinforcement learning of multimodal models"
__getattr__ = later(
    __name__,
    {
        "CoTReward": _RL,
        "F1Reward": _RL,
        "FormatReward": _RL,
        "GSM8KAccuracyReward": _RL,
        "GSM8KFormatReward": _RL,
        "MathReward": _RL,
        "MultiModalAccuracyReward": _MEDIA,
        "OlympiadBenchAccuracyReward": _MEDIA,
        "OlympiadBenchFormatReward": _MEDIA,
        "OlympiadBenchQualityReward": _MEDIA,
        "ToolExploreReward": _RL,
    },
)
