"""The service as a child of this process: what initialize(mode='http') starts."""

import atexit
import contextlib
import os
import re
import sys
import threading
from collections import deque
from subprocess import PIPE, Popen, TimeoutExpired

from twinkle import checks, program
from twinkle.errors import InvalidError, NotAvailableError

_DRAIN = 60  # seconds; the service takes at most 35 for what it has begun, and 15 to save runs
_ADDRESSES = ("TWINKLE_SERVER_URL", "TINKER_BASE_URL")  # where clients look for it


class Service:
    """`twinkle serve` on a port of its own. Its log goes to standard error. It ends with stop(), or
    with this process, however that ends.

    options: those of the command line, with '_' for '-': model, names (a text or a list), port,
    state and so on; port is 0, a free one, unless it or config is given, and state is the folder
    twinkle-state where this process runs, unless that or config says another: it is made, or
    goes on. Without model and config it is a server of its own: its model is that of the variable
    TWINKLE_SERVER_MODEL, or else the program's default, its port 8000, and this process, when it
    has done all else, prints what is served and waits until Ctrl-C stops it.
    InvalidError: what the program refuses, in its own words but for the names of options;
    a state that has keys, of which this process has none, unless auth or config is given.
    NotAvailableError: it is not built.
    """

    def __init__(self, options):
        if program.path() is None:
            raise NotAvailableError("service: bin/twinkle is not in the installed package")
        options, self._stays = _completed(options)
        command = [sys.executable, "-P", "-m", "twinkle", "serve", "--until-stdin-ends"]
        command += _arguments(options)
        self._owner = os.getpid()
        self._told = deque(maxlen=20)  # the program's own lines on standard error
        self._last = deque(maxlen=20)  # and what else is there, as of a loader or a kill
        self._is_up = False
        self._lock = threading.Lock()  # guards these two
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
        self._log = threading.Thread(target=self._read_log, daemon=True)
        self._log.start()
        line = self._process.stdout.readline()
        found = re.search(r"https?://\S+", line)
        if found is None:
            if line:  # it serves a Unix socket alone
                self._process.terminate()
            with self._process as process:
                status = process.wait()
                self._log.join()
            if line:
                checks.refuse("service: host", "none", "an IP address: clients need a URL")
            told = "; ".join(line.strip().removeprefix("twinkle: ") for line in self._told)
            ended = f"twinkle serve ended with status {status}\n{''.join(self._last)}".strip()
            raise InvalidError("service: " + (_named(told) or ended))
        with self._lock:
            self._is_up = True
            sys.stderr.writelines(self._told)
        self.url = found[0]
        for name in _ADDRESSES:
            os.environ[name] = self.url
        self._line = f"{line.strip()}; Ctrl-C stops it"
        atexit.register(self._at_exit)

    def _read_log(self):
        for line in self._process.stderr:
            with self._lock:  # before it is up, why it does not start, perhaps: the error tells it
                is_kept = line.startswith("twinkle: ") and not self._is_up
                (self._told if is_kept else self._last).append(line)
            if not is_kept:
                sys.stderr.write(line)

    def _at_exit(self):
        failed_or_prompted = hasattr(sys, "last_value") or hasattr(sys, "ps1")
        if self._stays and self._owner == os.getpid() and not failed_or_prompted:
            with contextlib.suppress(KeyboardInterrupt):
                print(self._line, flush=True)
                self._process.wait()
        self.stop()

    def stop(self):
        """Lets it answer what it has begun, and ends it. Nothing in a fork of this process."""
        atexit.unregister(self._at_exit)
        if self._owner != os.getpid():
            return
        with self._process as process:  # closes its ends, and waits
            process.stdin.close()
            try:
                process.wait(_DRAIN)
            except TimeoutExpired:
                process.kill()
            self._log.join()
        for name in _ADDRESSES:
            if os.environ.get(name) == self.url:
                del os.environ[name]


def _completed(options):
    """(the options that are given, with defaults; whether the service is a server of its own)."""
    options = {name: value for name, value in options.items() if value is not None}
    stays = not {"model", "config"} & set(options)
    model = stays and os.environ.get("TWINKLE_SERVER_MODEL")
    defaults = {"port": 8000 if stays else 0} | ({"model": model} if model else {})
    return (options if "config" in options else defaults | options), stays


def _arguments(options):
    for key, value in options.items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item is None:
                continue
            if not isinstance(item, (str, int, float, os.PathLike)):
                checks.refuse(f"service: {key}", item, "a text or a number")
            text = str(item).lower() if isinstance(item, bool) else item  # as false turns one off
            yield f"--{key.replace('_', '-')}={text}"


def _named(text):
    """The program's text about flags, with the options' names here."""
    flag = r"--(?!help)([a-z][a-z0-9-]*)(?='| is |=|$)"
    return re.sub(flag, lambda found: found[1].replace("-", "_"), text)
