"""How the tests are run: what conftest.py arranges for all of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from service.conftest import end_clients

ROOT = Path(__file__).parents[1]
INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"


def test_an_interrupt_reaches_a_test_and_what_it_starts():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    started = subprocess.run([sys.executable, "-c", INTERRUPT], capture_output=True, text=True)
    assert started.returncode == -signal.SIGINT and "KeyboardInterrupt" in started.stderr


def pytest_on(test, *options, **started):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
    return subprocess.run(
        [*command, f"{Path(__file__).relative_to(ROOT)}::{test.__name__}"],
        cwd=ROOT, capture_output=True, text=True, **started,
    )  # fmt: skip


def test_so_it_does_in_a_run_that_was_started_with_interrupts_ignored():
    """As `nohup make test &` and the shells of some runners start it."""
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    result = pytest_on(test_an_interrupt_reaches_a_test_and_what_it_starts, **ignored)
    assert result.returncode == 0 and "1 passed" in result.stdout, result.stdout


def test_without_processes_a_test_that_starts_one_is_skipped():
    test = test_an_interrupt_reaches_a_test_and_what_it_starts
    result = pytest_on(test, "-m", "not processes", "-rs")
    assert "it starts a process" in result.stdout and "1 skipped" in result.stdout, result.stdout


def test_clients_of_the_sdk_are_ended_with_the_file_that_made_them(monkeypatch):
    class Holder:
        closed = False

        def close(self):
            self.closed = True

    module = SimpleNamespace(InternalClientHolder=Holder)
    monkeypatch.setitem(sys.modules, "tinker.lib.internal_client_holder", module)
    left = Holder()
    end_clients()
    assert left.closed
