"""Hostile HTTP: paths, what is none, slow clients, those that hang up, 2,000 open polls."""

import json
import re
import socket
import struct
import time
from pathlib import Path

import pytest
from service.message import message, train
from service.wire import wait_until


@pytest.mark.parametrize(
    "path",
    [
        "/", "//", "/..", "/api/v1/../../etc/passwd", "/api/v1/samplers/..%2f..%2fetc", "*", "x",
        "/api/v1/samplers/", "/api/v1/samplers/%00", "/api/v1/samplers/a%", "/api/v1/samplers/a/b",
        "/api/v1/sessions//finish", "/api/v1/healthz/", "/api/v1/healthz%2f", "/%61pi/v1/healthz",
        "/hf/", "/hf/tiny/resolve/main/../config.json",
        "/hf/tiny/resolve/main/..%2fmodel.safetensors",
        "/hf/tiny/resolve/main/model.safetensors", "/hf/../state", "/hf/api/models/..", "/\xff\xfe",
        "/api/v1/samplers/\xff", "http://elsewhere/api/v1/none", "/api/v1/" + "a" * 20_000,
    ],
)  # fmt: skip
def test_paths_that_are_not_there_are_404(wire, path):
    for method in ("GET", "POST", "HEAD", "DELETE", "PUT", "BREW"):
        asked = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        said = wire.raw(asked.encode("latin1"), seconds=20)
        assert said.startswith((b"HTTP/1.1 404", b"HTTP/1.1 422")), said[:200]
        if method != "HEAD":
            assert "detail" in json.loads(said.partition(b"\r\n\r\n")[2])


POST = b"POST /api/v1/create_session HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    "bytes_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"\x00" * 1000, b"GET / HTTP/1.1\r\na: " + b"b" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000 + b"\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\na\x00b: c\r\n\r\n", b"GET / HTTP/1.1\r\n: c\r\n\r\n",
        POST + b"content-length: -1\r\n\r\n",
        POST + b"content-length: 18446744073709551616\r\n\r\n",
        POST + b"content-length: 18446744073709551615\r\n\r\n{}",
        POST + b"content-length: 9223372036854775808\r\n\r\n{}",
        POST + b"content-length: 300000000\r\n\r\n{}",
        POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}x",
        POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}",
        POST + b"transfer-encoding: x\r\n\r\n{}",
        POST + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
        POST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 5000 + b"\r\n{}",
        POST + b"expect: x\r\ncontent-length: 1\r\n\r\n[",
    ],
    ids=range(21),
)  # fmt: skip
def test_what_is_not_http_is_refused_or_hung_up_on(wire, bytes_):
    said = wire.raw(bytes_)
    assert not said or re.match(rb"HTTP/1.1 4(04|13|22|31) ", said), said[:200]


def test_clients_that_are_slow_or_gone_hold_nobody_up(attacked, wire):
    slow = [wire.connect() for _ in range(100)]
    body = POST + b"content-length: 100\r\n\r\n{" + b" " * 99
    for at in range(3):
        for number, peer in enumerate(slow):
            peer.sendall(body[at : at + 1] if number % 2 else body[60 * at : 60 * at + 60])
        began = time.monotonic()
        assert wire.send("GET", "/api/v1/healthz").status == 200
        assert time.monotonic() - began < 5
        time.sleep(1)
    for number, peer in enumerate(slow):
        if number % 4 == 0:  # a reset, not an orderly end
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    assert wire.send("GET", "/api/v1/healthz").status == 200


def polls_held(wire):
    said = wire.send("GET", "/metrics").body.decode()
    return int(re.search(r"^twinkle_polls_held (\d+)$", said, re.MULTILINE)[1])


def test_2000_open_polls_wait_and_those_who_hung_up_are_forgotten(attacked, wire):
    run = wire.run()
    ack = train(wire, message(run, 2)).json()  # after a number that has not come
    body = json.dumps({"request_id": ack["request_id"]}).encode()
    poll = (
        b"POST /api/v1/retrieve_future HTTP/1.1\r\nhost: localhost\r\nx-api-key: tml-hostile\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    ) + body
    polls = [wire.connect() for _ in range(2000)]
    for peer in polls:
        peer.sendall(poll)
    assert wire.send("GET", "/api/v1/healthz").status == 200
    wait_until(lambda: polls_held(wire) == 2000)
    files = Path(f"/proc/{attacked.server.process.pid}/fd")
    connections = len(list(files.iterdir()))
    for number, peer in enumerate(polls[:1000]):
        if number % 2 == 0:  # a reset, not an orderly end
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    wait_until(lambda: polls_held(wire) == 1000, seconds=15)  # long before their 30 s are over
    left = len(list(files.iterdir()))
    assert connections - left > 900, (connections, left)
    assert wire.post("retrieve_future", {"request_id": "none"}).status == 404
    train(wire, message(run, 1))
    for peer in polls[1000:]:
        peer.settimeout(20)
        assert peer.recv(12) == b"HTTP/1.1 200"
        peer.close()
