"""A worker whose process is stopped (SIGSTOP) answers nobody, and Ray, which tells of processes
that have ended, has nothing to tell. A small process next to each looks for that, and ends it. One
that is busy, whatever with, is not stopped. Run as a script: PID SECONDS."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_LOOKS = 8  # in the timeout, all of which have to find it stopped: who looks may be stopped, too


def end_when_stopped(seconds):
    """Ends this process, from another one, once it has been stopped for so many seconds."""
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(seconds)]
    subprocess.Popen(command, stdin=subprocess.DEVNULL)  # ends with this process


def _is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _look_after(pid, seconds):
    found = 0
    while found < _LOOKS:
        time.sleep(seconds / (_LOOKS + 1))
        if os.getppid() != pid:
            return
        found = found + 1 if _is_stopped(pid) else 0
    print(f"twinkle: infra: worker {pid} was stopped for {seconds:g} s, and is ended", flush=True)
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _look_after(int(sys.argv[1]), float(sys.argv[2]))
