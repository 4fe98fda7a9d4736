"""get_logger(): the logger named `twinkle`."""

import logging
import os
import sys

from twinkle import checks
from twinkle.platform import Platform

_FORMAT = os.environ.get(
    "TWINKLE_PRINT_FORMAT", "[%(asctime)s][%(levelname)s:%(name)s] %(message)s"
)


class Logger(logging.Logger):
    """logging.Logger whose texts below errors are the master's alone; with ranks='all' of every
    rank."""

    def __init__(self, name):
        super().__init__(name)
        self._seen = set()

    def _log(self, level, msg, args, ranks="master", stacklevel=1, **kwargs):
        here = level > logging.WARNING or ranks in (None, "all") or Platform.is_master()
        if here:
            super()._log(level, msg, args, stacklevel=stacklevel + 1, **kwargs)

    def _once(self, log, msg, args, kwargs):
        key = kwargs.pop("hash_id", None) or msg
        if key not in self._seen:
            self._seen.add(key)
            log(msg, *args, stacklevel=3, **kwargs)

    def info_once(self, msg, *args, **kwargs):
        """info, once in this process for a text, or for hash_id where that is given."""
        self._once(self.info, msg, args, kwargs)

    def warning_once(self, msg, *args, **kwargs):
        """warning, once in this process for a text, or for hash_id where that is given."""
        self._once(self.warning, msg, args, kwargs)

    def info_if(self, msg, cond, *args, **kwargs):
        """info where `cond` is true."""
        if cond:
            self.info(msg, *args, stacklevel=2, **kwargs)

    def warning_if(self, msg, cond, *args, **kwargs):
        """warning where `cond` is true."""
        if cond:
            self.warning(msg, *args, stacklevel=2, **kwargs)


def _level(what, value):
    """A level for logging: a name that it knows, in any case, or a number."""
    if not isinstance(value, str):
        return checks.integer(what, value, least=0)
    known = logging.getLevelNamesMapping()
    if value.upper() not in known:
        checks.refuse(what, value, f"a number, or one of {', '.join(known)}")
    return value.upper()


def _add(handler):
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%Y-%m-%d %H:%M:%S"))
    _LOGGER.addHandler(handler)


_LOGGER = Logger("twinkle")
_LOGGER.propagate = False
_add(logging.StreamHandler(sys.stderr))
_LOGGER.setLevel(_level("logger: LOG_LEVEL", os.environ.get("LOG_LEVEL", "INFO")))


def get_logger(log_file=None, log_level=None, file_mode="w", only_local_master=True):
    """The logger `twinkle`, writing to stderr.

    log_file: also write there. log_level: a name ('INFO') or number; None leaves it as it is
    ($LOG_LEVEL at first). only_local_master: other local ranks log errors only.
    InvalidError: a log_level that is no name of one and no number.
    """
    if log_level is not None:
        _LOGGER.setLevel(_level("logger: log_level", log_level))
    files = [getattr(handler, "baseFilename", None) for handler in _LOGGER.handlers]
    if log_file and os.path.abspath(log_file) not in files:  # noqa: PTH100 (as logging does)
        _add(logging.FileHandler(log_file, file_mode))
    if only_local_master and Platform.get_local_rank() != 0:
        _LOGGER.setLevel(logging.ERROR)
    return _LOGGER
