"""Requests as no SDK sends them, and what every answer to one must be."""

import http.client
import json
import re
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

# As the SDK sends it. A refusal that is compressed is taken for a proxy's, and no answer is.
ENCODINGS = "gzip, deflate, zstd"
JSON = {"content-type": "application/json"}
PROTO = {"content-type": "application/x-protobuf"}
# Statuses that the SDK takes for "try again", or for a fault of the server: no mistake of a client
# is one. Errors in OpenAI's form are for other clients, for which 400 is one.
NEVER = {400, 409}
OPENAI = b'{"error":{"message":'


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.body = response.read()
        is_openai = self.body.startswith(OPENAI)
        assert is_openai or self.status not in NEVER, (self.status, self.body)
        assert self.status < 500 or self.status == 503, (self.status, self.body)
        assert self.status != 503 or "retry-after" in self.headers, self.body
        assert int(self.headers["content-length"]) == len(self.body)
        assert "content-encoding" not in self.headers, self.headers

    def json(self):
        return json.loads(self.body)

    @property
    def detail(self):
        """Why it was refused."""
        assert 400 <= self.status < 500, (self.status, self.body)
        told = self.json()
        return told["error"]["message"] if "error" in told else told["detail"]


class Wire:
    """One key's requests; each has a minute, twice what a poll is held, and most share one
    connection."""

    def __init__(self, url, key="tml-hostile", timeout=60):
        self.place = urlsplit(url)
        self.key = key
        self.timeout = timeout
        self.connection = None

    def send(self, method, path, body=b"", headers=JSON):
        if self.connection is None:
            self.connection = http.client.HTTPConnection(
                self.place.hostname, self.place.port, timeout=self.timeout
            )
        sent = {"x-api-key": self.key, "accept-encoding": ENCODINGS, **headers}
        self.connection.request(method, path, body, sent)
        answer = Answer(self.connection.getresponse())
        if answer.headers.get("connection") == "close":
            self.connection.close()
        return answer

    def post(self, route, body, headers=JSON):
        """`body`: bytes, a text, or what becomes JSON."""
        if not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        body = body.encode() if isinstance(body, str) else body
        return self.send("POST", "/api/v1/" + route, body, headers)

    def ok(self, route, body):
        answer = self.post(route, body)
        assert answer.status == 200, answer.body
        return answer.json()

    def metric(self, name):
        text = self.send("GET", "/metrics").body.decode()
        return int(re.search(rf"^twinkle_{name} (\d+)$", text, re.M)[1])

    def result(self, ack, category="user"):
        """The answer of what was accepted; it ends, well or with an error that says whose."""
        for _ in range(6):
            answer = self.post("retrieve_future", {"request_id": ack["request_id"]})
            if answer.status != 408:
                break
        assert answer.status == 200, (ack, answer.status, answer.body)
        if answer.headers["content-type"] != "application/json":
            return answer.body
        said = answer.json()
        assert said.get("category", category) == category, said
        return said

    def session(self):
        return self.ok("create_session", {})["session_id"]

    def run(self, rank=4):
        """A new run's id."""
        lora = {"rank": rank, "seed": 1}
        body = {"session_id": self.session(), "model_seq_id": 0, "base_model": "tiny"}
        return self.result(self.ok("create_model", body | {"lora_config": lora}))["model_id"]

    def step(self, run, seq_id, **adam):
        adam = {"learning_rate": 1e-3} | adam
        body = {"model_id": run, "seq_id": seq_id, "adam_params": adam}
        return self.post("optim_step", body)

    def connect(self):
        return socket.create_connection((self.place.hostname, self.place.port), self.timeout)

    def raw(self, data, seconds=1):
        """The answer to these bytes, until the server ends the connection or is silent for so
        long."""
        with self.connect() as peer:
            peer.settimeout(seconds)
            out = b""
            try:
                peer.sendall(data)
                while part := peer.recv(65536):
                    out += part
            except (TimeoutError, ConnectionError):
                pass
        return out


def memory(process, name="VmHWM"):
    """Bytes: the most that the process has had."""
    with Path(f"/proc/{process.pid}/status").open() as file:
        line = next(line for line in file if line.startswith(name + ":"))
    return int(line.split()[1]) << 10


def wait_until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)
