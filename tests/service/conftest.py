"""A server of a tiny model, and clients of the real SDK."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-c", "from twinkle.program import main; main()"]
WITH_FAULTS = Path(__file__).parents[2] / "build/release/twinkle_with_faults"


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}


class Server:
    """`twinkle serve` on a free port of loopback; ended by `stop`. `log`: where its log goes."""

    def __init__(self, model, state, *arguments, command=PROGRAM, log=None):
        from twinkle import program

        if program.path() is None:
            pytest.skip("bin/twinkle is not built")
        place = ["--model", model, "--name", "tiny", "--state", state]
        self.command = [*command, "serve", *place, *arguments]
        self.state = state
        self.log = log
        self.url = None
        self.start_again()

    def launch(self, variables=None):
        """A new process on the same state, at the same address, which may not serve yet."""
        port = self.url.rpartition(":")[2] if self.url else "0"
        self.process = subprocess.Popen(
            [*self.command, "--port", port],
            env={**environment(), **(variables or {})}, stdout=subprocess.PIPE, text=True,
            stderr=self.log,
        )  # fmt: skip

    def start_again(self, variables=None):
        """A new process, which serves."""
        self.launch(variables)
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"twinkle serve said {line!r}"
        self.url = found[0]

    def client(self, key="tml-test"):
        """A client of the SDK."""
        tinker = pytest.importorskip("tinker")
        return tinker.ServiceClient(base_url=self.url, api_key=key)

    def kill(self):
        """As SIGKILL does; returns when it is gone."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self.process.stdout.close()


def end_clients():
    """Ends the heartbeats of the SDK's clients, which go on when the server has ended."""
    if holders := sys.modules.get("tinker.lib.internal_client_holder"):
        for each in gc.get_objects():
            if type(each) is holders.InternalClientHolder:
                each.close()


@pytest.fixture(scope="module", autouse=True)
def no_client_outlives_its_file():
    yield
    end_clients()


@pytest.fixture(scope="module")
def start():
    """Starts a server: of a model, on a state's folder, with more arguments."""
    with pytest.MonkeyPatch.context() as patch:  # other files' tests of hubs are online
        patch.setenv("TINKER_TELEMETRY", "0")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield Server


@pytest.fixture(scope="session")
def twinkle():
    """twinkle(*arguments): the program, until it ends; its status and what it printed."""

    def run(*arguments):
        command = [*PROGRAM, *map(str, arguments)]
        return subprocess.run(command, env=environment(), capture_output=True, text=True)

    return run


@pytest.fixture(scope="module")
def with_faults():
    """The command that starts bin/twinkle with faults.cpp."""
    if not WITH_FAULTS.is_file():
        pytest.skip("build/release/twinkle_with_faults is not built: make build")
    return [WITH_FAULTS]


@pytest.fixture(scope="module")
def server(start, tiny_llama_dir, tmp_path_factory):
    it = start(tiny_llama_dir, tmp_path_factory.mktemp("state"))
    yield it
    assert it.stop() == 0


@pytest.fixture(scope="module")
def service(server):
    """Its client of the SDK."""
    return server.client()


@pytest.fixture(scope="module")
def attacked(start, tiny_llama_dir, tmp_path_factory):
    """A server for hostile requests; what became of it and of its quiet tenant is checked last."""
    from service.attacked import Attacked

    pytest.importorskip("tinker")

    def alone():
        return start(tiny_llama_dir, tmp_path_factory.mktemp("alone"), "--log-level", "off")

    it = Attacked(start, tiny_llama_dir, tmp_path_factory.mktemp("hostile") / "state")
    yield it
    it.end(alone)


@pytest.fixture
def wire(attacked):
    return attacked.wire()
