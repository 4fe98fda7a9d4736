"""Notifiers: who is told when a run fails. `initialize(notifier=...)` tells of what ends it."""

from twinkle.notifier.base import Notifier, notify_exception
from twinkle.notifier.ding import DingNotifier

__all__ = ["DingNotifier", "Notifier", "notify_exception"]
