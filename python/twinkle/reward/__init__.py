"""Rewards: numbers that say how good replies are. Write your own by subclassing Reward."""

from twinkle.reward.base import Reward
from twinkle.reward.format import CoTReward, FormatReward
from twinkle.reward.gsm8k import GSM8KAccuracyReward, GSM8KFormatReward
from twinkle.reward.math_answer import MathReward, MultiModalAccuracyReward
from twinkle.reward.olympiad import (
    OlympiadBenchAccuracyReward,
    OlympiadBenchFormatReward,
    OlympiadBenchQualityReward,
)
from twinkle.reward.tools import F1Reward, ToolExploreReward

__all__ = [
    "CoTReward", "F1Reward", "FormatReward", "GSM8KAccuracyReward", "GSM8KFormatReward",
    "MathReward", "MultiModalAccuracyReward", "OlympiadBenchAccuracyReward",
    "OlympiadBenchFormatReward", "OlympiadBenchQualityReward", "Reward", "ToolExploreReward",
]  # fmt: skip
