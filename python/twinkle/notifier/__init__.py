"""Notifiers: who is notified when a run fails. `initialize(notifier=...)` reports what ends it."""

from twinkle.notifier.base import Notifier, notify_exception
from twinkle.notifier.ding import DingNotifier

__all__ = ["DingNotifier", "Notifier", "notify_exception"]
