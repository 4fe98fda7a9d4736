"""Advantages: how much better a reply is than expected. Write your own by subclassing Advantage."""

from twinkle.advantage.base import Advantage
from twinkle.advantage.gae import GAEAdvantage
from twinkle.advantage.group import GRPOAdvantage, RLOOAdvantage

__all__ = ["Advantage", "GAEAdvantage", "GRPOAdvantage", "RLOOAdvantage"]
