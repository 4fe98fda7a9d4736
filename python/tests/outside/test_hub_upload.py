"""upload_to_hub against a small hub of our own, over loopback: what arrives, and its refusals."""

import base64
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("huggingface_hub")

UPLOAD = """
import sys
from twinkle.model import TransformersModel
from twinkle.errors import TwinkleError

asynchronous = sys.argv[2] == "async"
try:
    out = TransformersModel.upload_to_hub(
        None, sys.argv[1], "hf://me/mine", hub_token=sys.argv[3], async_upload=asynchronous
    )
    print(out.result() if asynchronous else out)
except TwinkleError as error:
    print(type(error).__name__, error)
"""


class Hub(BaseHTTPRequestHandler):
    """As much of huggingface.co as an upload of small files asks for."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hub = self.server
        if self.headers.get("Authorization") != "Bearer secret":
            return self._answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            hub.created.append(json.loads(body))
            return self._answer(200, {"url": f"{hub.url}/me/mine"})
        if self.path == "/api/models/me/mine/preupload/main":
            files = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for f in json.loads(body)["files"]]  # fmt: skip
            return self._answer(200, {"files": files})
        if self.path.startswith("/api/models/me/mine/commit/main"):
            for line in body.splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    content = base64.b64decode(item["value"]["content"])
                    hub.files[item["value"]["path"]] = content
            return self._answer(200, {"commitUrl": f"{hub.url}/me/mine/commit/1", "commitOid": "1"})
        return self._answer(404, {"error": f"no {self.path}"})

    def do_GET(self):
        known = self.path.startswith("/api/models/me/mine")
        self._answer(200 if known else 404, {"id": "me/mine", "sha": "0", "siblings": []})

    def _answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.url = f"http://127.0.0.1:{server.server_port}"
    server.created, server.files = [], {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def upload(hub, directory, how="now", token="secret"):
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                   "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1",
                   "no_proxy": "127.0.0.1"}  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", UPLOAD, str(directory), how, token],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path):
    files = {
        "adapter_config.json": b'{"r": 4}',
        "adapter_model.safetensors": bytes(range(256)) * 40,
        "tokenizer.json": '{"a": "ä"}'.encode(),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path, files


@pytest.mark.parametrize("how", ["now", "async"])
def test_every_file_arrives_in_a_private_repository(hub, checkpoint, how):
    directory, files = checkpoint
    done = upload(hub, directory, how)
    assert done.returncode == 0, done.stderr
    assert hub.files == files
    (made,) = hub.created
    assert made["name"] == "mine"
    assert made.get("visibility") == "private" or made.get("private") is True
    assert "me/mine" in done.stdout


@pytest.mark.parametrize("how", ["now", "async"])
def test_a_refusal_of_the_hub_is_told(hub, checkpoint, how):
    done = upload(hub, checkpoint[0], how, token="wrong")
    assert done.stdout.startswith("NotFoundError hub: cannot upload to 'hf://me/mine': "), done
    assert "401" in done.stdout
    assert not hub.files
