"""Servers as processes, and a client of plain sockets, whose own time is small."""

import json
import os
import re
import socket
import struct
import subprocess
from pathlib import Path

from foreign import cpu_seconds
from service.stub import field
from worker import rss_mib

ROOT = Path(__file__).resolve().parent.parent.parent
KEY = "tml-bench"


def program(name):
    path = ROOT / "build/release" / name
    if not path.exists():
        raise SystemExit(f"bench: there is no {path.relative_to(ROOT)}: run `make build`")
    return str(path)


class Server:
    """A process that prints where it listens and ends with its standard input."""

    def __init__(self, *command, **environment):
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
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

    def rss_mib(self):
        return rss_mib(self._process.pid)

    def cpu_seconds(self):
        """Seconds of the cores that it has used."""
        return cpu_seconds(self._process.pid)


def request_bytes(path, body=None, content_type="application/json"):
    """The bytes of a request; one with a body is a POST."""
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n"
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
        status, body = self.answer(request)
        if status != 200:
            raise RuntimeError(f"bench: a server answered {status}: {bytes(body)!r}")
        return body

    def answer(self, request):
        """The status and the body of the answer."""
        self._socket.sendall(request)
        got = bytearray()
        while (end := got.find(b"\r\n\r\n")) < 0:
            got += self._received()
        head = bytes(got[:end])
        length = int(re.search(rb"(?i)content-length: *(\d+)", head)[1])
        body, have = bytearray(length), len(got) - end - 4
        body[:have] = got[end + 4 :]
        view = memoryview(body)
        while have < length:
            count = self._socket.recv_into(view[have:])
            if not count:
                raise RuntimeError("bench: a server closed the connection")
            have += count
        return int(head.split(b" ", 2)[1]), body

    def post(self, name, **body):
        return json.loads(self.ask(request_bytes(f"/api/v1/{name}", json.dumps(body).encode())))

    def sent(self, request):
        """The request_id of one that is accepted."""
        return json.loads(self.ask(request))["request_id"]

    def result(self, request_id):
        """The result of a promise, however long it takes; one that failed raises its text."""
        request, status = poll(request_id), 408
        while status == 408:  # held for 30 s, and still at work
            status, body = self.answer(request)
        if status != 200 or (body.startswith(b"{") and "error" in json.loads(body)):
            raise RuntimeError(f"bench: {request_id} ended with {status}: {bytes(body)!r}")
        return body

    def new_run(self, base_model="null", rank=8, seed=0):
        """The model_id of a run whose adapter is on all linears but the head."""
        session = self.post("create_session")["session_id"]
        lora = {"rank": rank, "seed": seed, "train_unembed": False}
        made = self.post(
            "create_model", session_id=session, model_seq_id=0, base_model=base_model,
            lora_config=lora,
        )  # fmt: skip
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
    row = [1] * num_tokens
    return forward_backward_of(run, seq_id, [(row, row, row)] * num_data)


def forward_backward_of(run, seq_id, rows):
    """The same of rows: (tokens, targets, weights) each."""
    body = field(1, run.encode()) + field(2, seq_id)
    body += b"".join(field(3, datum(*row)) for row in rows) + field(4, b"cross_entropy")
    return request_bytes("/api/v1/forward_backward", body, "application/x-protobuf")


def datum(tokens, targets, weights):
    count = len(tokens)

    def tensor(name, values, dtype):
        shape = field(4, _packed(count))
        return field(2, field(1, name) + field(2, field(1, values) + field(3, dtype) + shape))

    out = field(1, field(1, field(1, struct.pack(f"<{count}i", *tokens))))
    out += tensor(b"target_tokens", struct.pack(f"<{count}q", *targets), 2)
    return out + tensor(b"weights", struct.pack(f"<{count}f", *weights), 1)


def loss_of(body):
    """loss:sum of a ForwardBackwardOutput."""
    name = b"loss:sum\x11"  # a key of its metrics, then the tag of a double
    return struct.unpack_from("<d", body, body.index(name) + len(name))[0]


def _packed(value):
    return field(0, value)[1:]
