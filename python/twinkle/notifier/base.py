"""Notifier: where messages about a run go. notify_exception reports a failure to one."""

import os
import socket
import sys
import traceback

from twinkle import checks
from twinkle.logger import get_logger
from twinkle.platform import Platform


class Notifier:
    """Base of notifiers: a subclass defines __call__(message), a text in Markdown.

    What to_dict gives is JSON, and from_dict makes an equal notifier of it in another process: by
    default the attributes, which are then the constructor's arguments.
    """

    _kinds = {}  # noqa: RUF012 (name: subclass)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Notifier._kinds[cls.__name__] = cls

    def __call__(self, message):
        """Sends `message`, a text in Markdown."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__")

    def to_dict(self):
        """{'class': its name, attribute: value}; all must be JSON."""
        return {"class": type(self).__name__, **vars(self)}

    @classmethod
    def from_dict(cls, data):
        """The notifier that to_dict described. InvalidError: a class that is not defined here."""
        data = dict(checks.mapping("notifier: data", data))
        name = checks.one_of("notifier: class", data.pop("class", None), Notifier._kinds)
        return Notifier._kinds[name](**data)


def notify_exception(notifier, context, exc, name=None):
    """Reports an exception to `notifier` (or None: to nobody), once for each. An exception of the
    notifier itself is only logged, so that the original one is raised.

    context: where it happened; name: of the run.
    """
    if notifier is None or getattr(exc, "_twinkle_notified", False):
        return
    exc._twinkle_notified = True
    trace = "".join(traceback.format_exception(exc))
    message = (
        f"### [Twinkle] `{name or 'unnamed'}`: exception in `{context}`\n\n"
        f"- **Type**: `{type(exc).__name__}`\n- **Message**: {exc}\n"
        f"- **Process**: {os.getpid()} on {socket.gethostname()}, rank {Platform.get_rank()}"
        f"\n\n```\n{trace}```\n"
    )
    try:
        notifier(message)
    except Exception as error:
        get_logger().error("notifier: %s did not get through: %s", type(notifier).__name__, error)


class FatalHook:
    """While installed, an exception that ends the process is reported to a notifier first."""

    def __init__(self, notifier, name):
        self._notifier, self._name = notifier, name
        self._before = sys.excepthook
        sys.excepthook = self._tell

    def _tell(self, kind, exc, trace):
        if issubclass(kind, Exception):  # not Ctrl-C
            notify_exception(self._notifier, "the main thread", exc, self._name)
        self._before(kind, exc, trace)

    def remove(self):
        """Removes it: from here on nothing is reported."""
        if sys.excepthook == self._tell:
            sys.excepthook = self._before
        self._notifier = None
