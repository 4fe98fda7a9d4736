"""`twinkle serve --unix-socket`: beside a port, and alone."""

import json
import re
import shutil
import socket
import stat
import subprocess
import tempfile
from http.client import HTTPConnection
from pathlib import Path

import pytest
from service.conftest import PROGRAM, environment


class UnixConnection(HTTPConnection):
    """http.client's, to a path."""

    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))

    def ask(self, method, path, body=None):
        self.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        response = self.getresponse()
        return response.status, response.read()


@pytest.fixture
def place():
    """The path of a socket: a short one, which pytest's are not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "twinkle.sock"


SESSION = {"tags": [], "sdk_version": "0.38.0", "type": "create_session"}


def test_it_is_served_beside_the_port_and_replaced_after_a_kill(
    start, twinkle, tiny_llama_dir, place, tmp_path
):
    log = (tmp_path / "log").open("w")
    server = start(tiny_llama_dir, tmp_path / "state", "--unix-socket", place, log=log)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    client = UnixConnection(place)
    for _ in range(2):  # one connection
        assert client.ask("GET", "/readyz")[0] == 200
    status, body = client.ask("POST", "/api/v1/create_session", SESSION)
    assert status == 200 and json.loads(body)["session_id"]
    if curl := shutil.which("curl"):
        command = [curl, "-sf", "--unix-socket", place, "http://localhost/healthz"]
        assert subprocess.run(command, timeout=60).returncode == 0
    other = ("serve", "--model", tiny_llama_dir, "--state", tmp_path / "other", "--port", "0")
    refused = twinkle(*other, "--unix-socket", place)
    assert refused.returncode == 1
    assert f"a server listens on unix_socket '{place}' already; end it, or" in refused.stderr
    server.kill()
    assert place.exists()
    server.start_again()
    assert UnixConnection(place).ask("GET", "/readyz")[0] == 200
    assert server.stop() == 0
    assert not place.exists()
    log.close()
    line = re.search(r"POST /api/v1/create_session 200 .*", (tmp_path / "log").read_text())[0]
    assert " peer=unix " in line


def test_it_is_served_alone_where_the_host_is_none(tiny_llama_dir, twinkle, place, tmp_path):
    state = tmp_path / "state"
    where = ["--model", tiny_llama_dir, "--state", state, "--host=none", "--unix-socket", place]
    checked = twinkle("serve", *where, "--check")
    assert f"\naddress: unix:{place}\n" in checked.stdout, checked.stderr
    command = [*PROGRAM, "serve", *map(str, where)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline().endswith(f" at unix:{place}\n")
        assert UnixConnection(place).ask("GET", "/readyz")[0] == 200
        listening = [
            line.split()[9] for name in ("tcp", "tcp6")
            for line in Path(f"/proc/{server.pid}/net/{name}").read_text().splitlines()[1:]
            if line.split()[3] == "0A"
        ]  # fmt: skip
        mine = {link.readlink().name for link in Path(f"/proc/{server.pid}/fd").iterdir()}
        assert not mine & {f"socket:[{inode}]" for inode in listening}
        server.terminate()
        assert server.wait(60) == 0
    assert not place.exists()


def test_a_path_that_cannot_be_is_refused_before_the_model_is_loaded(
    tiny_llama_dir, twinkle, tmp_path
):
    (tmp_path / "file").touch()
    for path, said in (
        (tmp_path / "none" / "s", "is in no folder: make"),
        (tmp_path / "file", "is there and no socket; remove it"),
        ("x" * 108, "has 108 bytes, it may have 107"),
    ):
        done = twinkle(
            "serve", "--model", tiny_llama_dir, "--state", tmp_path / "s", "--unix-socket", path
        )
        assert done.returncode == 2 and said in done.stderr, done.stderr
    done = twinkle("serve", "--model", tiny_llama_dir, "--state", tmp_path / "s", "--host=none")
    assert done.returncode == 2 and "host is 'none', and unix_socket is ''" in done.stderr
    assert not (tmp_path / "s").exists()
