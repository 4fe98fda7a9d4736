"""Rewards: numbers that say how good replies are. Write your own by subclassing Reward."""

from twinkle.reward.base import Reward

__all__ = ["Reward"]
