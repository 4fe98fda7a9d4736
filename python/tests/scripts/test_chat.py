"""`twinkle chat` on a terminal: prompts, answers, Ctrl-C and Ctrl-D."""

import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from twinkle import program


class Terminal:
    """The program on a terminal of its own; `until(text)` reads what it prints."""

    def __init__(self, *arguments):
        if program.path() is None:
            pytest.skip("bin/twinkle is not built")
        self._end, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from twinkle.program import main; main()", *arguments],
            stdin=other, stdout=other, stderr=other,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        )  # fmt: skip
        os.close(other)
        self._read = ""

    def type(self, text):
        os.write(self._end, text.encode())

    def more(self):
        """Waits for more of what it prints."""
        assert select.select([self._end], [], [], 300)[0], f"nothing came after {self._read!r}"
        self._read += os.read(self._end, 4096).decode(errors="replace")

    def begun(self):
        """Waits until there is something that `until` has not taken."""
        while not self._read:
            self.more()

    def until(self, text):
        """All up to `text`, which is taken."""
        while text not in self._read:
            self.more()
        before, _, self._read = self._read.partition(text)
        return before

    def ended(self):
        status = self.process.wait(timeout=60)
        os.close(self._end)
        return status


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_chat(engine_built, tiny_llama_dir):
    chat = Terminal("chat", str(tiny_llama_dir), "--max-tokens", "400", "--temperature", "1")
    assert "/help lists the commands" in chat.until("\r\n> ")
    chat.type("Hello!\n")
    chat.until("Hello!\r\n")
    chat.begun()  # a Ctrl-C before the answer drops the line
    chat.process.send_signal(signal.SIGINT)
    chat.until(" tokens/s")
    chat.until("\r\n> ")
    chat.process.send_signal(signal.SIGINT)
    chat.until("(Ctrl-D or /exit ends the chat)\r\n> ")
    chat.type("/adapter nobody\n")
    chat.until("there is no adapter 'nobody'")
    chat.until("\r\n> ")
    chat.type("/reset\n")
    chat.until("> ")
    chat.type("\x04")
    assert chat.ended() == 0
