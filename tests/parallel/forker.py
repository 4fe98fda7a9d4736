"""The process from which others are forked, so that none of them imports torch and twinkle anew:
SOCKET [MODULE ...], the number of its end of a socket, and what to import beside them. It has one
thread, and neither an engine nor a group of ranks.

A request is JSON, with the files that are to be 0, 1 and 2 of the fork. Answers: {"pid"}, and
{"ended", "status"} when a fork has ended. All forks end with the other end of the socket."""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

IMPORTED = (
    "numpy",
    "safetensors.torch",
    "torch.distributed",
    "twinkle.checkpoint_engine.gloo",
    "twinkle.dataloader",
    "twinkle.dataset",
    "twinkle.loss",
    "twinkle.metric",
    "twinkle.model",
    "twinkle.preprocessor",
    "twinkle.sampler",
    "twinkle.template",
)
MAX_REQUEST = 1 << 20  # bytes


def load(modules):
    for name in (*IMPORTED, *modules):
        importlib.import_module(name)
    with suppress(Exception):  # where it is not built, the forks say so
        importlib.import_module("twinkle.core").core()
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    assert threads == 1, f"{threads} threads: a fork would have one of them only"
    gc.collect()
    gc.freeze()  # forks share these objects with this process as long as nobody writes to them


class Forks:
    """Those that live. control: the socket."""

    def __init__(self, control):
        self._control, self._pids = control, {}  # by the file that shows the end of a process
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(control, selectors.EVENT_READ)

    def serve(self):
        """The request, in each fork; it does not return in this process."""
        while True:
            for key, _ in self._waiting.select():
                if key.fileobj is not self._control:
                    self._forget(key.fileobj)
                elif (request := self._fork()) is not None:
                    return request

    def _forget(self, file):
        self._waiting.unregister(file)
        os.close(file)
        pid = self._pids.pop(file)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._answer({"ended": pid, "status": status})

    def _answer(self, what):
        with suppress(OSError):  # it has gone, which is seen next
            self._control.send(json.dumps(what).encode())

    def _fork(self):
        text, files, _, _ = socket.recv_fds(self._control, MAX_REQUEST, 3)
        if not text:
            for pid in self._pids.values():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)  # there is nothing to tidy up
        pid = os.fork()
        if pid == 0:
            self._waiting.close()
            self._control.close()
            for file in self._pids:
                os.close(file)
            for number, file in enumerate(files):
                os.dup2(file, number)
        for file in files:
            os.close(file)
        if pid == 0:
            return json.loads(text)
        ended = os.pidfd_open(pid)
        self._pids[ended] = pid
        self._waiting.register(ended, selectors.EVENT_READ)
        self._answer({"pid": pid})
        return None


def begin():
    """The path of the script that a fork is to run, of which it has all but the modules."""
    load(sys.argv[2:])
    request = Forks(socket.socket(fileno=int(sys.argv[1]))).serve()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["command"]
    return sys.argv[0]


if __name__ == "__main__":
    __file__ = begin()
    # In this module, which pickle and Python's end take for the script's own.
    exec(compile(Path(__file__).read_bytes(), __file__, "exec", dont_inherit=True))
