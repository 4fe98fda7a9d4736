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
    """logging.Logger whose info and warning take ranks='master' | 'all'."""

    def __init__(self, name):
        super().__init__(name)
        self._seen = set()

    def _wanted(self, ranks):
        return ranks in (None, "all") or Platform.is_master()

    def info(self, msg, *args, ranks="master", stacklevel=1, **kwargs):
        """As logging's info, on the master alone; ranks='all': on every rank."""
        if self._wanted(ranks):
            super().info(msg, *args, stacklevel=stacklevel + 1, **kwargs)

    def warning(self, msg, *args, ranks="master", stacklevel=1, **kwargs):
        """As logging's warning, on the master alone; ranks='all': on every rank."""
        if self._wanted(ranks):
            super().warning(msg, *args, stacklevel=stacklevel + 1, **kwargs)

    def _once(self, log, msg, args, kwargs):
        key = kwargs.pop("hash_id", None) or msg
        if key not in self._seen:
            self._seen.add(key)
            log(msg, *args, stacklevel=3, **kwargs)

    def has_logged(self, hash_id):
        """True if info_once or warning_once has logged a text of this hash_id."""
        return hash_id in self._seen

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


def _make():
    logger = Logger("twinkle")
    logger.propagate = False
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%Y-%m-%d %H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(_level("logger: LOG_LEVEL", os.environ.get("LOG_LEVEL", "INFO")))
    return logger


_LOGGER = _make()


def get_logger(log_file=None, log_level=None, file_mode="w", only_local_master=True):
    """The logger `twinkle`, writing to stderr.

    log_file: also write there. log_level: a name ('INFO') or number; None leaves it as it is
    ($LOG_LEVEL at first). only_local_master: other local ranks log errors only.
    InvalidError: a log_level that is no name of one and no number.
    """
    if log_level is not None:
        _LOGGER.setLevel(_level("logger: log_level", log_level))
    if log_file and not any(
        isinstance(handler, logging.FileHandler)
        and handler.baseFilename == os.path.abspath(log_file)  # noqa: PTH100 (as logging does)
        for handler in _LOGGER.handlers
    ):
        handler = logging.FileHandler(log_file, file_mode)
        handler.setFormatter(logging.Formatter(_FORMAT, datefmt="%Y-%m-%d %H:%M:%S"))
        _LOGGER.addHandler(handler)
    if only_local_master and Platform.get_local_rank() != 0:
        _LOGGER.setLevel(logging.ERROR)
    return _LOGGER
