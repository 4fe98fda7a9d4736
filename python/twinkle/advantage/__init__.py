"""Advantages: how much better a reply is than expected. Write your own by subclassing Advantage."""

from twinkle.advantage.base import Advantage

__all__ = ["Advantage"]
