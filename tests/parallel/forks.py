"""Scripts in processes of their own, which begin as forks (forker.py) in a tenth of the time that
Python, torch and twinkle take to start."""

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent


def environment(**more):
    paths = os.pathsep.join(map(str, sys.path))
    return {
        **os.environ,
        "TWINKLE_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": paths,
    } | more


@functools.cache
def forker(*modules):
    """The one of this process that has imported these modules, too."""
    return Forker(modules)


class Forker:
    """The process of forker.py. It ends with this one."""

    def __init__(self, modules):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "forker.py"), str(theirs.fileno()), *modules],
                env=environment(),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._ended = {}  # status, by pid
        atexit.register(self._end)

    def _end(self):
        self._socket.close()
        self._process.wait()

    def fork(self, request, files):
        """The pid of a fork. files: what its stdin, stdout and stderr are to be."""
        socket.send_fds(self._socket, [json.dumps(request).encode()], files)
        while "pid" not in (answer := self._answer()):
            pass
        return answer["pid"]

    def status(self, pid, seconds):
        """With which a fork has ended; None: it has not in so many seconds."""
        end = time.monotonic() + seconds
        while pid not in self._ended:
            left = max(end - time.monotonic(), 0)
            if not select.select([self._socket], [], [], left)[0]:
                return None
            self._answer()
        return self._ended[pid]

    def _answer(self):
        text = self._socket.recv(1 << 16)
        assert text, "the process that forks others has ended"
        answer = json.loads(text)
        if "ended" in answer:
            self._ended[answer["ended"]] = answer["status"]
        return answer


class Process:
    """A script with its arguments, that runs. imports: what the forker is to have imported beside
    torch and twinkle. anew: None of that, but a Python that starts for it. more: variables."""

    def __init__(self, *command, folder=None, imports=(), anew=False, **more):
        command = [str(HERE / command[0]), *map(str, command[1:])]
        variables, folder = environment(**more), str(folder or Path.cwd())
        self._error = tempfile.TemporaryFile()  # noqa: SIM115 (closed with this object)
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe()
        files = [their_stdin, their_stdout, self._error.fileno()]
        self._forker = self._started = None
        if anew:
            names = dict(zip(("stdin", "stdout", "stderr"), files, strict=True))
            command = [sys.executable, *command]
            self._started = subprocess.Popen(command, env=variables, cwd=folder, **names)
            self.pid = self._started.pid
        else:
            self._forker = forker(*imports)
            request = {"command": command, "environment": variables, "folder": folder}
            self.pid = self._forker.fork(request, files)
        os.close(their_stdin)
        os.close(their_stdout)
        self._stdin, self._stdout, self._unread = os.fdopen(stdin, "w"), stdout, b""

    def status(self, seconds=0):
        """With which it has ended, a signal's number with a minus; None: it has not in so many
        seconds."""
        if self._forker is not None:
            return self._forker.status(self.pid, seconds)
        with suppress(subprocess.TimeoutExpired):
            return self._started.wait(seconds)
        return None

    def error(self):
        """All that it has written to stderr until now."""
        size = os.fstat(self._error.fileno()).st_size
        return os.pread(self._error.fileno(), size, 0).decode(errors="replace")

    def end(self, seconds):
        """(its status, all that it has written to stderr), when it ends within so many seconds."""
        status = self.status(seconds)
        assert status is not None, f"{self.pid} goes on after {seconds} s: {self.error()[-4000:]}"
        return status, self.error()

    def wait_for(self, text, seconds=120):
        """Until it has written a line that contains the text: the line."""
        end = time.monotonic() + seconds
        while True:
            line, cut, rest = self._unread.partition(b"\n")
            if cut:
                self._unread = rest
                if text in (line := line.decode() + "\n"):
                    return line
                continue
            left = max(end - time.monotonic(), 0)
            more = select.select([self._stdout], [], [], left)[0] and os.read(self._stdout, 1 << 16)
            assert more, f"{self.pid} has not written {text!r}: {self.error()[-4000:]}"
            self._unread += more

    def rest(self):
        """All that it has written since, where it has ended."""
        with os.fdopen(os.dup(self._stdout), "rb") as stdout:
            return (self._unread + stdout.read()).decode()

    def wait_for_error(self, text, seconds=60):
        """Until it has written the text to stderr."""
        end = time.monotonic() + seconds
        while text not in self.error():
            assert self.status() is None and time.monotonic() < end, self.error()[-4000:]
            time.sleep(0.02)

    def say(self, line):
        """A line to its stdin."""
        self._stdin.write(line + "\n")
        self._stdin.flush()

    def send_signal(self, number):
        if self.status() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self):
        """Ends it, whatever it does, and forgets what it has written."""
        self.send_signal(signal.SIGKILL)
        self.end(60)
        os.close(self._stdout)
        self._error.close()
        with suppress(BrokenPipeError):
            self._stdin.close()
