"""The console script `twinkle`: becomes the executable in the installed package."""

import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

import twinkle

_FOLDERS = "LD_LIBRARY_PATH"


def path():
    """The executable's path, or None if it was not built. An editable install has two folders."""
    found = (Path(folder) / "bin" / "twinkle" for folder in twinkle.__path__)
    return next((file for file in found if file.is_file()), None)


def typed():
    """The command that starts the program in the user's shell, for messages."""
    started = sys.argv[0]
    if Path(started).name != "twinkle":  # python -m twinkle
        return "twinkle"
    found = shutil.which("twinkle")
    return "twinkle" if found and os.path.realpath(found) == os.path.realpath(started) else started


def main():
    """Becomes the executable, with this process's arguments; without one a message and status 1."""
    program = path()
    if program is None:
        sys.exit("twinkle: bin/twinkle is not in the installed package: run `make build`")
    # Held back until the executable, which takes a while to load, handles them (interrupts.cpp).
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
    # The executable asks this interpreter for what is Python's business, such as hubs.
    os.environ.setdefault("TWINKLE_PYTHON", sys.executable)
    # It looks for torch next to the package; torch may be in another folder.
    torch = importlib.util.find_spec("torch")
    if torch is not None and not (program.parents[2] / "torch").is_dir():
        folders = [Path(torch.origin).parent / "lib", *filter(None, [os.environ.get(_FOLDERS)])]
        os.environ[_FOLDERS] = os.pathsep.join(map(str, folders))
    os.execv(program, [typed(), *sys.argv[1:]])
