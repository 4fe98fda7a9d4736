"""A worker whose process is stopped (SIGSTOP) answers nobody, and Ray, which tells of processes
that have ended, has nothing to tell. A small process next to each looks for that, and ends it. One
that is busy, whatever with, is not stopped. Run as a script: PID SECONDS."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

_LOOKS = 8  # in the timeout, all of which have to find it stopped: who looks may be stopped, too


def end_when_stopped(seconds):
    """Ends this process, from another one, once it has been stopped for so many seconds."""
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(seconds)]
    subprocess.Popen(command, stdin=subprocess.DEVNULL)  # ends with this process


def _look_after(pid, seconds):
    found, before, end = 0, None, os.pidfd_open(pid)
    while found < _LOOKS:
        if select.select([end], [], [], seconds / (_LOOKS - 1))[0]:
            return
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used = fields[11:13]  # its time on processors
        # One that was let go on in between, as by a limiter of its share, has used time.
        found = (found + 1 if used == before else 1) if fields[0] == "T" else 0
        before = used
    os.kill(pid, signal.SIGKILL)
    print(f"twinkle: infra: worker {pid} was stopped for {seconds:g} s, and is ended", flush=True)


if __name__ == "__main__":
    _look_after(int(sys.argv[1]), float(sys.argv[2]))
