"""Advantages: how much better a reply is than expected. Write your own by subclassing Advantage."""

from twinkle.advantage.base import Advantage
from twinkle.errors import later

__all__ = ["Advantage"]

__getattr__ = later(
    __name__,
    dict.fromkeys(("GAEAdvantage", "GRPOAdvantage", "RLOOAdvantage"), "reinforcement learning"),
)
