"""Memory and time of other clients while some send or take much, or slowly."""

import json
import random
import resource
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from service.conftest import PROGRAM
from service.wire import JSON, PROTO, Wire, memory, wait_until

zstandard = pytest.importorskip("zstandard")
message = pytest.importorskip("service.message")

MIB = 1 << 20
LONG = [3 + i % 200 for i in range(301)]


def longest_wait(wire, while_):
    """Seconds: of healthz, asked again and again."""
    longest = 0
    while while_():
        began = time.monotonic()
        assert wire.send("GET", "/api/v1/healthz").status == 200
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.01)
    return longest


def test_thirty_bombs_at_once_take_no_more_than_all_bodies_may(
    start, with_faults, tiny_llama_dir, tmp_path
):
    control = tmp_path / "disk"
    options = ["--max-body-bytes", str(32 * MIB), "--max-body-bytes-total", str(128 * MIB)]
    server = start(tiny_llama_dir, tmp_path / "state", *options, command=with_faults)
    server.kill()
    server.start_again({"TWINKLE_FAULT_DISK": str(control)})
    run = Wire(server.url).run()
    before = memory(server.process)
    control.write_text("slow 100")  # so that bodies wait to be written down

    def made(number):
        head = message.pb.ForwardBackwardRequest(model_id=run, seq_id=number, loss_fn="none")
        nothing = b"\x7a\x80\x80\x80\x0f" + bytes(30 * MIB)  # a field that nobody reads
        bomb = zstandard.ZstdCompressor().compress(head.SerializeToString() + nothing)
        assert len(bomb) < 64 << 10
        return bomb

    bombs = list(map(made, range(1, 31)))  # before the waits, which are the server's alone

    def send(bomb):
        headers = PROTO | {"content-encoding": "zstd"}
        return Wire(server.url, timeout=60).post("forward_backward", bomb, headers).status

    with ThreadPoolExecutor(31) as pool:
        sent = [pool.submit(send, bomb) for bomb in bombs]
        waits = longest_wait(Wire(server.url), lambda: not all(one.done() for one in sent))
    said = [one.result() for one in sent]
    assert set(said) <= {422, 503} and said.count(422) > 5, said
    assert waits < 1
    grown = memory(server.process) - before
    assert grown < 450 * MIB, grown / MIB  # bodies, their records, and one that is decoded
    control.unlink()
    assert server.stop() == 0


def test_clients_that_announce_much_and_send_little_take_no_room(start, tiny_llama_dir, tmp_path):
    server = start(tiny_llama_dir, tmp_path / "state")
    wire = Wire(server.url)
    run = wire.run()
    head = (
        b"POST /api/v1/forward_backward HTTP/1.1\r\nhost: localhost\r\nx-api-key: tml-slow\r\n"
        b"content-type: application/x-protobuf\r\ncontent-length: %d\r\n\r\n" % (256 * MIB)
    )
    slow = [wire.connect() for _ in range(100)]
    for peer in slow:
        peer.sendall(head + bytes(100_000))
    ended = threading.Event()

    def trickle():
        while not ended.wait(0.1):
            for peer in slow:
                peer.sendall(bytes(100))

    with ThreadPoolExecutor(1) as pool:
        trickling = pool.submit(trickle)
        for number in range(1, 4):
            made = message.message(run, number, [1, 2, 3] * 100_000, loss="none")
            began = time.monotonic()
            assert message.train(wire, made).status == 422  # it has been read
            assert time.monotonic() - began < 10  # half of what a body waits for room
        ended.set()
        trickling.result()
    for peer in slow:
        peer.close()
    assert server.stop() == 0


def test_slow_readers_of_a_file_of_the_tokenizer_share_its_bytes(start, tiny_llama_dir, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_llama_dir, model)
    (model / "vocab.txt").write_bytes(b"x" * (32 * MIB))
    server = start(model, tmp_path / "state")
    wire = Wire(server.url)
    before = memory(server.process)
    readers = []
    for _ in range(60):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((wire.place.hostname, wire.place.port))
        reader.sendall(b"GET /hf/tiny/resolve/main/vocab.txt HTTP/1.1\r\nhost: localhost\r\n\r\n")
        readers.append(reader)
    for reader in readers:
        assert reader.recv(12) == b"HTTP/1.1 200"
    assert memory(server.process) - before < 200 * MIB
    for reader in readers:
        reader.close()
    assert server.stop() == 0


@pytest.mark.parametrize("encoding", ["", "zstd"])
def test_a_body_that_is_too_long_uses_its_number_up_and_the_run_goes_on(
    start, tiny_llama_dir, tmp_path, encoding
):
    server = start(tiny_llama_dir, tmp_path / "state", "--max-body-bytes", str(MIB))
    wire = Wire(server.url)
    run = wire.run()
    noise = random.Random(1).choices(range(3, 300), k=200_000)  # no encoding makes it short
    long = message.message(run, 1, noise).SerializeToString()
    headers = dict(PROTO)
    if encoding:
        long = zstandard.ZstdCompressor().compress(long * 4)
        headers["content-encoding"] = encoding
    assert len(long) > MIB
    stepped = wire.step(run, 2).json()  # it comes before it
    refused = wire.post("forward_backward", long, headers)
    assert refused.status == 413 and "longer than 1048576 bytes" in refused.detail
    assert refused.detail in wire.result(stepped)["error"]
    server.kill()
    server.start_again()
    wire = Wire(server.url)
    assert refused.detail in wire.result(stepped)["error"]
    assert isinstance(wire.result(message.train(wire, message.message(run, 3)).json()), bytes)
    assert "metrics" in wire.result(wire.step(run, 4).json())
    assert server.stop() == 0


def in_one_chunk(wire, route, body, content_type, sent=5000):
    """The answer to a body whose length comes with it, and of which no more is sent than
    tells its number."""
    head = (
        f"POST /api/v1/{route} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {wire.key}\r\n"
        f"content-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n{len(body):x}\r\n"
    )
    with wire.connect() as peer:
        peer.settimeout(60)
        peer.sendall(head.encode() + body[:sent])
        return peer.recv(1000)


def test_long_chunks_and_long_json_use_their_numbers_up(start, tiny_llama_dir, tmp_path):
    server = start(tiny_llama_dir, tmp_path / "state")
    wire = Wire(server.url)
    run = wire.run()
    passed = message.train(wire, message.message(run, 1, weights=message.ONES)).json()
    last = wire.step(run, 5).json()  # it comes first
    long = {"model_id": run, "seq_id": 2, "adam_params": {}, "x": "y" * (9 * MIB)}
    refused = wire.post("optim_step", long)
    assert refused.status == 413 and "longer than 8388608 bytes" in refused.detail
    for route, seq_id in (("optim_step", 3), ("save_weights", 4)):
        body = json.dumps(long | {"seq_id": seq_id}).encode()
        said = in_one_chunk(wire, route, body, "application/json")
        assert said.startswith(b"HTTP/1.1 413 "), said
    server.kill()
    server.start_again()
    wire = Wire(server.url)
    assert isinstance(wire.result(passed), bytes)
    assert "metrics" in wire.result(last), "by the gradients of 1"
    body = message.message(run, 6).SerializeToString() + b"x" * (65 * MIB)
    said = in_one_chunk(wire, "forward_backward", body, "application/x-protobuf")
    assert said.startswith(b"HTTP/1.1 413 "), said
    assert "longer than 67108864 bytes" in wire.result(wire.step(run, 7).json())["error"]
    assert server.stop() == 0


def test_a_number_behind_nine_megabytes_of_json_is_used_up_and_those_within_are_not(
    start, tiny_llama_dir, tmp_path
):
    server = start(tiny_llama_dir, tmp_path / "state")
    wire = Wire(server.url)
    run = wire.run()
    last = wire.step(run, 5).json()  # it comes first
    inner = {"model_id": run, "seq_id": 6}
    decoys = {
        "x": "y" * (9 * MIB) + json.dumps(inner),
        "adam_params": inner,
        "z": [inner, "model_id", run, "seq_id", 6],
    }

    def body(seq_id):
        return json.dumps(decoys | {"model_id": run, "seq_id": seq_id}).encode()

    assert wire.post("optim_step", decoys).status == 413, "which is nobody's"
    assert wire.post("optim_step", body(1)).status == 413
    long = body(2)
    said = in_one_chunk(wire, "optim_step", long, "application/json", len(long))
    assert said.startswith(b"HTTP/1.1 413 "), said
    packed = zstandard.ZstdCompressor().compress(body(3))  # it decodes to more
    headers = JSON | {"content-encoding": "zstd"}
    assert "is decoded" in wire.post("optim_step", packed, headers).detail
    noise = random.Random(1).randbytes(13 * MIB).hex()  # no encoding makes it short
    last_of_all = {"x": noise, "model_id": run, "seq_id": 4}
    packed = zstandard.ZstdCompressor().compress(json.dumps(last_of_all).encode())
    assert len(packed) > 9 * MIB
    assert wire.post("optim_step", packed, headers).status == 413
    assert "metrics" in wire.result(last)
    for seq_id in (1, 2, 3, 4):
        assert wire.step(run, seq_id).detail == f"server: seq_id {seq_id} of '{run}' was refused"
    assert "metrics" in wire.result(wire.step(run, 6).json()), "within a text, or another object"
    assert server.stop() == 0


def test_the_end_of_a_session_frees_the_engine_of_its_samples(start, tiny_llama_dir, tmp_path):
    server = start(tiny_llama_dir, tmp_path / "state")
    wire = Wire(server.url)
    session = wire.session()
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler = wire.ok("create_sampling_session", body)["sampling_session_id"]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 5, 9]}]}

    def sample(seq_id):
        body = {"sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 256}
        params = {"max_tokens": 500, "stop": []}
        return wire.ok("asample", body | {"prompt": prompt, "sampling_params": params})

    def seconds():
        told = wire.send("GET", "/metrics").body.decode()
        return float(told.split("\ntwinkle_sampling_seconds_total ")[1].split()[0])

    acks = [sample(seq_id) for seq_id in range(4)]
    wait_until(lambda: seconds() > 0.02)
    wire.ok(f"sessions/{session}/finish", {})
    for ack in acks:
        assert wire.result(ack)["error"].endswith("finished, and this sample was cancelled")
    usage = wire.send("GET", "/api/v1/usage").json()["usage"]
    (generated,) = [line["generated_tokens"] for line in usage]
    assert 0 < generated < 4 * 256 * 500, "what they had by then"
    assert server.stop() == 0
    server = start(tiny_llama_dir, tmp_path / "state")
    assert Wire(server.url).send("GET", "/api/v1/usage").json()["usage"] == usage
    assert server.stop() == 0


def test_what_was_accepted_is_done_when_its_record_can_be_read_again(
    start, tiny_llama_dir, tmp_path
):
    log = (tmp_path / "log").open("w+")
    server = start(tiny_llama_dir, tmp_path / "state", log=log)
    wire, other = Wire(server.url), Wire(server.url)
    run = wire.run()
    assert other.send("GET", "/api/v1/healthz").status == 200  # it is connected
    long = {"tokens": LONG[:-1], "target_tokens": LONG[1:], "weights": [1.0] * 300}
    two = message.train(wire, message.message(run, 2, **long)).json()  # they wait for the first
    stepped = wire.step(run, 3).json()
    before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        message.train(wire, message.message(run, 1, weights=message.ONES)).json()
        said = f"{run}:2 waits, since its record cannot be read now: "
        wait_until(lambda: said in (tmp_path / "log").read_text())
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)
    assert isinstance(other.result(two), bytes)
    assert other.result(stepped)["metrics"]["step"] == 1
    assert server.stop() == 0


def test_connections_leave_files_for_what_is_served(start, tiny_llama_dir, tmp_path):
    log = (tmp_path / "log").open("w+")
    most = 200
    command = ["prlimit", f"--nofile={most}:{most}", *PROGRAM]
    server = start(tiny_llama_dir, tmp_path / "state", command=command, log=log)
    said = "max_connections is 10000, but the system lets this process have 200 files open: 136"
    assert said in (tmp_path / "log").read_text()
    wire = Wire(server.url)
    run = wire.run()
    idle = [wire.connect() for _ in range(most)]
    fds = Path(f"/proc/{server.process.pid}/fd")
    wait_until(lambda: len(list(fds.iterdir())) >= 119)  # an eighth of 136 is left for probes
    long = {"tokens": LONG[:-1], "target_tokens": LONG[1:], "weights": [1.0] * 300}
    two = message.train(wire, message.message(run, 2, **long)).json()  # it is read back
    message.train(wire, message.message(run, 1, weights=message.ONES)).json()
    assert isinstance(wire.result(two), bytes)
    assert isinstance(
        wire.result(wire.ok("save_weights", {"model_id": run, "seq_id": 3, "path": "a"})), dict
    )
    for peer in idle:
        peer.close()
    assert server.stop() == 0
