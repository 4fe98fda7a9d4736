"""Servers as processes, and a client of plain sockets, whose own time is small."""

import json
import re
import socket
import struct
import subprocess
from pathlib import Path

from service.stub import field

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = "tml-bench"


def program(name):
    path = ROOT / "build/release" / name
    if not path.exists():
        raise SystemExit(f"bench: there is no {path.relative_to(ROOT)}: run `make build`")
    return str(path)


class Server:
    """A process that prints where it listens and ends with its standard input."""

    def __init__(self, *command):
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = self._process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if not found:
            raise RuntimeError(f"bench: {command[0]} said {line!r}, exit {self._process.wait()}")
        self.url, self.port = found[0], int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def request_bytes(path, body=None, content_type="application/json"):
    """The bytes of a request; one with a body is a POST."""
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    head += f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Client:
    """One connection that stays; one request at a time."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def ask(self, request):
        """The body of the answer, which must be 200."""
        self._socket.sendall(request)
        got = bytearray()
        while (end := got.find(b"\r\n\r\n")) < 0:
            got += self._received()
        head = bytes(got[:end])
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"bench: a server answered {bytes(got)!r}")
        length = int(re.search(rb"(?i)content-length: *(\d+)", head)[1])
        body, have = bytearray(length), len(got) - end - 4
        body[:have] = got[end + 4 :]
        view = memoryview(body)
        while have < length:
            count = self._socket.recv_into(view[have:])
            if not count:
                raise RuntimeError("bench: a server closed the connection")
            have += count
        return body

    def post(self, name, **body):
        return json.loads(self.ask(request_bytes(f"/api/v1/{name}", json.dumps(body).encode())))

    def result(self, request_id):
        return self.ask(poll(request_id))

    def new_run(self):
        """The model_id of a run of the null model."""
        session = self.post("create_session")["session_id"]
        lora = {"rank": 8, "train_unembed": False}
        made = self.post(
            "create_model", session_id=session, model_seq_id=0, base_model="null", lora_config=lora
        )
        self.result(made["request_id"])
        return made["model_id"]

    def _received(self):
        got = self._socket.recv(65536)
        if not got:
            raise RuntimeError("bench: a server closed the connection")
        return got


def poll(request_id):
    body = json.dumps({"request_id": request_id, "allow_metadata_only": False}).encode()
    return request_bytes("/api/v1/retrieve_future", body)


def forward_backward(run, seq_id, num_data=1, num_tokens=3):
    """The request, of data that have a target and a weight for each token."""
    tokens = struct.pack(f"<{num_tokens}i", *[1] * num_tokens)
    targets = struct.pack(f"<{num_tokens}q", *[1] * num_tokens)
    weights = struct.pack(f"<{num_tokens}f", *[1] * num_tokens)
    shape = field(4, _packed(num_tokens))

    def tensor(name, values, dtype):
        return field(2, field(1, name) + field(2, field(1, values) + field(3, dtype) + shape))

    datum = field(1, field(1, field(1, tokens)))
    datum += tensor(b"target_tokens", targets, 2) + tensor(b"weights", weights, 1)
    body = field(1, run.encode()) + field(2, seq_id) + field(3, datum) * num_data
    body += field(4, b"cross_entropy")
    return request_bytes("/api/v1/forward_backward", body, "application/x-protobuf")


def _packed(value):
    return field(0, value)[1:]
