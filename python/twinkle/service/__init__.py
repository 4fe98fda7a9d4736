"""The service as a child of this process: what initialize(mode='http') starts."""

import atexit
import os
import re
import subprocess
import sys
import threading
from collections import deque

from twinkle import checks, program
from twinkle.errors import InvalidError, NotAvailableError

_DRAIN = 40  # seconds; the service itself takes at most 30 for what it has begun
_ADDRESSES = ("TWINKLE_SERVER_URL", "TINKER_BASE_URL")  # where clients look for it


class Service:
    """`twinkle serve` on a port of its own. Its log goes to standard error. It ends with stop(), or
    with this process, however that ends.

    options: those of the command line, with '_' for '-': model, names (a text or a list), port,
    state and so on; port is 0, a free one, unless it or config is given. InvalidError: what the
    program refuses, in its own words; NotAvailableError: it is not built.
    """

    def __init__(self, options):
        if program.path() is None:
            raise NotAvailableError("service: bin/twinkle is not in the installed package")
        self._owner = os.getpid()
        self._last = deque(maxlen=20)  # lines of standard error
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "twinkle", "serve", "--until-stdin-ends"),
                *_arguments(options if "config" in options else {"port": 0, **options}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._log = threading.Thread(target=self._read_log, daemon=True)
        self._log.start()
        line = self._process.stdout.readline()
        found = re.search(r"https?://\S+", line)
        if found is None:
            self._process.wait()
            self._close()
            raise InvalidError("service: " + ("; ".join(self._last) or "twinkle serve ended"))
        self.url = found[0]
        for name in _ADDRESSES:
            os.environ[name] = self.url
        atexit.register(self.stop)

    def _read_log(self):
        for line in self._process.stderr:
            self._last.append(line.strip().removeprefix("twinkle: "))
            sys.stderr.write(line)

    def stop(self):
        """Lets it answer what it has begun, and ends it. Nothing in a fork of this process."""
        atexit.unregister(self.stop)
        if self._owner != os.getpid():
            return
        self._process.stdin.close()
        try:
            self._process.wait(_DRAIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()
        for name in _ADDRESSES:
            if os.environ.get(name) == self.url:
                del os.environ[name]

    def _close(self):
        self._log.join()
        for end in (self._process.stdin, self._process.stdout, self._process.stderr):
            end.close()


def _arguments(options):
    for key, value in options.items():
        flag = "--" + key.replace("_", "-")
        values = value if isinstance(value, (list, tuple)) else [value]
        for item in values:
            if item is None:
                continue
            if not isinstance(item, (str, int, float, os.PathLike)):
                checks.refuse(f"service: {key}", item, "a text or a number")
            yield f"{flag}={_text(item)}"


def _text(item):
    if isinstance(item, bool):
        return str(item).lower()  # false turns off what is on by default
    return os.fspath(item) if isinstance(item, os.PathLike) else item
