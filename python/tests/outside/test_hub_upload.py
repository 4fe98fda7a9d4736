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

UPLOADS = """
import json
import sys
from twinkle.model import TransformersModel
from twinkle.errors import TwinkleError

for name, how, token in json.loads(sys.argv[2]):
    asynchronous = how == "async"
    try:
        out = TransformersModel.upload_to_hub(
            None, sys.argv[1], f"hf://me/{name}", hub_token=token, async_upload=asynchronous
        )
        said = out.result() if asynchronous else out
    except TwinkleError as error:
        said = f"{type(error).__name__} {error}"
    print(json.dumps(said))
"""
FILES = {
    "adapter_config.json": b'{"r": 4}',
    "adapter_model.safetensors": bytes(range(256)) * 40,
    "tokenizer.json": '{"a": "ä"}'.encode(),
}


class Hub(BaseHTTPRequestHandler):
    """As much of huggingface.co as an upload of small files asks for."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hub = self.server
        if self.headers.get("Authorization") != "Bearer secret":
            return self._answer(401, {"error": "Invalid username or password."})
        if self.path == "/api/repos/create":
            hub.created.append(json.loads(body))
            return self._answer(200, {"url": f"{hub.url}/me/{hub.created[-1]['name']}"})
        name, _, verb = self.path.removeprefix("/api/models/me/").partition("/")
        if verb == "preupload/main":
            files = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for f in json.loads(body)["files"]]  # fmt: skip
            return self._answer(200, {"files": files})
        if verb.startswith("commit/main"):
            for line in body.splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    content = base64.b64decode(item["value"]["content"])
                    hub.files.setdefault(name, {})[item["value"]["path"]] = content
            url = f"{hub.url}/me/{name}/commit/1"
            return self._answer(200, {"commitUrl": url, "commitOid": "1"})
        return self._answer(404, {"error": f"no {self.path}"})

    def do_GET(self):
        name = self.path.removeprefix("/api/models/me/").partition("/")[0]
        known = name in [made["name"] for made in self.server.created]
        self._answer(200 if known else 404, {"id": f"me/{name}", "sha": "0", "siblings": []})

    def _answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def uploaded(tmp_path_factory):
    """The hub after four uploads of FILES, each under its name, and what each has said. All by one
    process, which reads the hub's address when it begins."""
    directory = tmp_path_factory.mktemp("checkpoint")
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    hub.url = f"http://127.0.0.1:{hub.server_port}"
    hub.created, hub.files = [], {}
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                   "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1",
                   "no_proxy": "127.0.0.1"}  # fmt: skip
    asked = [
        (f"{who}-{how}", how, token)
        for who, token in (("wrong", "wrong"), ("mine", "secret"))
        for how in ("now", "async")
    ]
    done = subprocess.run(
        [sys.executable, "-c", UPLOADS, str(directory), json.dumps(asked)],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    hub.shutdown()
    hub.server_close()
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return hub, dict(zip([name for name, _, _ in asked], said, strict=True))


@pytest.mark.parametrize("how", ["now", "async"])
def test_every_file_arrives_in_a_private_repository(uploaded, how):
    hub, said = uploaded
    name = f"mine-{how}"
    assert hub.files[name] == FILES
    (made,) = [made for made in hub.created if made["name"] == name]
    assert made.get("visibility") == "private" or made.get("private") is True
    assert f"me/{name}" in said[name]


@pytest.mark.parametrize("how", ["now", "async"])
def test_a_refusal_of_the_hub_is_told(uploaded, how):
    hub, said = uploaded
    name = f"wrong-{how}"
    assert said[name].startswith(f"NotFoundError hub: cannot upload to 'hf://me/{name}': "), said
    assert "401" in said[name]
    assert name not in hub.files and name not in [made["name"] for made in hub.created]
