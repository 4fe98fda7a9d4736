"""Hostile training: numbers that cannot be, broken protobuf, bombs, requests that come twice, in
any order or cut."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from service.message import ONES, message, tensor, train
from service.wire import PROTO, memory

tinker = pytest.importorskip("tinker")
zstandard = pytest.importorskip("zstandard")
from tinker import types  # noqa: E402
from tinker.proto import tinker_public_pb2 as pb  # noqa: E402

ADAM = types.AdamParams(learning_rate=1e-3)
MIB = 1 << 20
NAN, INF = float("nan"), float("inf")

WRONG = {  # its refusal, and the request
    "weights holds nan": {"weights": [1.0, NAN, 1.0]},
    "weights holds inf": {"weights": [1.0, INF, 1.0]},
    "data[0].model_input: token 320": {"tokens": [1, 320, 3], "target_tokens": [1, 2, 3]},
    "token -1 at": {"tokens": [1, -1, 3], "target_tokens": [1, 2, 3]},
    "token 2147483647": {"tokens": [1, 2**31 - 1, 3], "target_tokens": [1, 2, 3]},
    "data[0].target_tokens: label 320 at": {"target_tokens": [1, 320, 3]},
    "data[0].target_tokens are its own tokens": {
        "tokens": list(range(1, 11)), "target_tokens": list(range(1, 11)),
    },
    "target_tokens holds -1": {"target_tokens": [1, -1, 3]},
    "target_tokens holds 9223372036854775807": {"target_tokens": [1, 2**63 - 1, 3]},
    "target_tokens has the shape [2]": {"target_tokens": [1, 2]},
    "weights has the shape [4]": {"weights": [1.0] * 4},
    "target_tokens has 3 values, its shape has 4": {
        "target_tokens": tensor([1, 2, 3], shape=[4])
    },
    "a dimension of -1": {"target_tokens": tensor([1, 2, 3], shape=[-1])},
    "a dimension of 4611686018427387904": {"target_tokens": tensor([1, 2, 3], shape=[2**62, 4])},
    "more than 2 dimensions": {"target_tokens": tensor([1, 2, 3], shape=[1, 1, 3])},
    "target_tokens must be int64": {"target_tokens": ONES},
    "dtype 9": {"target_tokens": tensor([1, 2, 3], dtype=9)},
    "data[0].model_input is empty": {"tokens": [], "target_tokens": np.zeros(0, np.int64)},
    "1000000 tokens": {"tokens": [1] * 1_000_000},
    "513 tokens": {"tokens": [1] * 513},
    "loss_fn is missing": {"loss": ""},
    "'x'": {"loss": "x"},
    "data[0] has no logprobs": {"loss": "ppo"},
    "advantages holds nan": {"loss": "ppo", "logprobs": ONES, "advantages": [1.0, NAN, 1.0]},
    "advantages holds inf": {"loss": "ppo", "logprobs": ONES, "advantages": [1.0, INF, 1.0]},
    "logprobs holds -inf": {"loss": "ppo", "logprobs": [-INF] * 3, "advantages": ONES},
    "clip_low_threshold": {
        "loss": "ppo", "logprobs": ONES, "advantages": ONES, "config": {"clip_low_threshold": NAN},
    },
    "'surprise'": {"surprise": ONES},
    "'more'": {"config": {"more": 1.0}},
}  # fmt: skip


def test_numbers_that_cannot_be_are_named_and_their_window_alone_is_dropped(wire):
    run = wire.run()
    seq_id = 1
    for said, made in WRONG.items():
        answer = train(wire, message(run, seq_id, **made))
        if answer.status == 200:
            told = wire.result(answer.json())
            assert isinstance(told, dict), f"{said}: it was done"
            why = told["error"]
        else:
            assert answer.status == 422
            why = answer.detail
        assert said in why, why[:300]
        step = wire.step(run, seq_id + 1).json()
        assert "a request of its window failed" in wire.result(step).get("error", ""), said
        seq_id += 2
    before = wire.result(train(wire, message(run, seq_id, weights=ONES)).json())
    fresh = wire.run()
    assert wire.result(train(wire, message(fresh, 1, weights=ONES)).json()) == before
    assert wire.result(wire.step(run, seq_id + 1).json())["metrics"]["step"] == 1


@pytest.mark.parametrize("adam", [{"learning_rate": 1e308}, {"weight_decay": 1e308}])
def test_a_step_to_infinity_changes_nothing(wire, adam):
    run = wire.run()
    row = message(run, 1, weights=ONES)
    before = wire.result(train(wire, row).json())
    answer = wire.step(run, 2, **adam)
    if answer.status == 200:
        assert "error" in wire.result(answer.json())
    row.seq_id = 3
    assert wire.result(train(wire, row).json()) == before


def test_what_the_real_sdk_sends_wrongly_it_is_told_and_goes_on(attacked):
    client = attacked.server.client("tml-hostile").create_lora_training_client("tiny", rank=4)

    def row(chunk, **inputs):
        made = types.ModelInput(chunks=[chunk])
        return types.Datum(model_input=made, loss_fn_inputs={"target_tokens": [1, 2, 3]} | inputs)

    text = types.EncodedTextChunk(tokens=[1, 2, 3])
    image = types.ImageChunk(data=b"\x89PNG", format="png")
    for wrong in (row(text, weights=[1.0] * 4), row(image)):
        with pytest.raises(tinker.UnprocessableEntityError, match=r"data\[0\]"):
            client.forward_backward([wrong], "cross_entropy").result(timeout=60)
        with pytest.raises(tinker.RequestFailedError, match="of its window failed"):
            client.optim_step(ADAM).result(timeout=60)
    client.forward_backward([row(text)], "cross_entropy").result(timeout=60)
    assert client.optim_step(ADAM).result(timeout=60).metrics["step"] == 1


def csr(run, seq_id, rows, cols):
    """A request of [rows, cols] targets and weights, of which one is listed."""
    out = message(run, seq_id, np.arange(rows) % 200 + 3)
    crow = np.ones(rows + 1, np.int64)
    crow[0] = 0
    for name, dtype, values in (
        ("target_tokens", 2, np.array([5], np.int64)),
        ("weights", 1, np.array([1.0], np.float32)),
    ):
        made = pb.Tensor(dtype=dtype, shape=[rows, cols])
        made.sparse_csr.values = values.tobytes()
        made.sparse_csr.crow_indices = crow.tobytes()
        made.sparse_csr.col_indices = np.zeros(1, np.int64).tobytes()
        out.data[0].loss_fn_inputs[name].CopyFrom(made)
    return out


def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out) + bytes([n])


def damaged(whole):
    """The message cut everywhere, with changed bytes and with lengths of every class."""
    yield from (whole[:size] for size in range(0, len(whole), 3))
    for at in range(0, len(whole), 2):
        for flip in (0x01, 0x80, 0xFF):
            yield whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]
    lengths = [varint(n) for n in (0, 1, 127, 128, 2**14, 2**21, 2**28, 2**31, 2**32, 2**63)]
    lengths += [b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\xff" * 11 + b"\x00", b"\x80" * 9 + b"\x00"]
    for length in lengths:
        for tag in (0x0A, 0x1A, 0x22, 0x2A, 0x3A):
            yield whole + bytes([tag]) + length + b"\x0a\x02\x08\x01"
    yield from (whole + bytes([tag]) for tag in range(256))
    yield whole + b"\x1b" * 20_000  # groups in groups, which are not read
    yield whole + (b"\x1a\x02\x0a\x00") * 100


def test_broken_protobuf_is_refused_and_its_run_goes_on(wire):
    run, other = wire.run(), wire.run()
    whole = message(run, 1, weights=ONES).SerializeToString()
    count = 0
    for bytes_ in damaged(whole):
        answer = train(wire, bytes_)
        assert answer.status in (200, 404, 422), answer.body
        if answer.status != 200:
            assert re.match("forward_backward:|server:", answer.detail), answer.detail
        count += 1
    assert count > 500
    assert isinstance(wire.result(train(wire, message(other, 1)).json()), bytes)


def test_a_short_sparse_body_of_a_large_shape_is_refused_before_it_takes_memory(attacked, wire):
    before = memory(attacked.server.process)
    run = wire.run()
    bomb = csr(run, 1, 500, 67_000)
    assert bomb.ByteSize() < 11_000
    began = time.monotonic()
    answer = train(wire, bomb)
    assert answer.status == 422
    assert "data[0].target_tokens has the shape [500, 67000]" in answer.detail
    assert "max_forward_backward_bytes is 67108864" in answer.detail
    assert time.monotonic() - began < 5
    assert memory(attacked.server.process) - before < 64 * MIB
    assert "max_forward_backward_bytes" in wire.result(wire.step(run, 2).json())["error"]
    honest = wire.result(train(wire, csr(run, 3, 500, 256)).json())
    assert isinstance(honest, bytes) and len(honest) > 500 * 256 * 4


def test_bombs_are_refused_within_bounded_memory(attacked, wire):
    most = memory(attacked.server.process)
    pack = zstandard.ZstdCompressor(level=3).compressobj()
    bomb = b"".join(pack.compress(bytes(MIB)) for _ in range(1024)) + pack.flush()
    run = wire.run()
    head = pb.ForwardBackwardRequest(model_id=run, seq_id=1, loss_fn="x").SerializeToString()

    def packed(body):
        return zstandard.ZstdCompressor().compress(body)

    whole = packed(head)
    cases = {
        "longer than": (bomb, "zstd"),
        "cut off": (bomb[:400], "zstd"),
        "broken": (b"\x28\xb5\x2f\xfd" + b"\xff" * 100, "zstd"),
        "is broken": (b"x" * 100, "zstd"),
        "it is cut": (whole[:-3], "zstd"),
        "Content-Encoding is 'gzip'": (whole, "gzip"),
        "Content-Encoding is 'zstd, zstd'": (packed(whole), "zstd, zstd"),
        "more than 67108864 values": (packed(head + b"\x1a\x00" * (20 * MIB)), "zstd"),
        "the request has more": (
            packed(head + b"\x1a\x06\x12\x04\x12\x02\x18\x01" * (5 * MIB)), "zstd",
        ),
        "dimensions": (
            packed(message(
                run, 1, target_tokens=tensor([1], shape=[1] * (8 * MIB))).SerializeToString()),
            "zstd",
        ),
    }  # fmt: skip
    for said, (body, encoding) in cases.items():
        answer = wire.post("forward_backward", body, PROTO | {"content-encoding": encoding})
        assert answer.status == 422
        assert said in answer.detail, (said, answer.detail)
    grown = memory(attacked.server.process) - most
    assert grown < 1100 * MIB, grown / MIB


def test_requests_that_come_twice_in_any_order_or_cut_are_done_once(attacked, wire):
    def losses(run, order):
        """One of the same five windows, sent in this order, from many connections."""
        sent = {}
        wires = [attacked.wire() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            for n in order:
                made = message(run, n, [1, n, 2 * n], weights=ONES)
                asks = [pool.submit(train if n % 2 else step, w, made) for w in wires]
                acks = {json.dumps(a.result().json(), sort_keys=True) for a in asks}
                assert len(acks) == 1
                sent[n] = json.loads(acks.pop())
        return [wire.result(sent[n]) for n in sorted(sent)]

    def step(wire, made):
        return wire.step(made.model_id, made.seq_id)

    forwards = losses(wire.run(), range(1, 11))
    run = wire.run()
    cut = message(run, 10, weights=ONES).SerializeToString()
    head = (
        b"POST /api/v1/forward_backward HTTP/1.1\r\nhost: localhost\r\nx-api-key: tml-hostile\r\n"
        b"content-type: application/x-protobuf\r\ncontent-length: %d\r\n\r\n" % len(cut)
    )
    with wire.connect() as peer:
        peer.sendall(head + cut[:-5])
    assert losses(run, [10, 1, 9, 2, 8, 3, 7, 4, 6, 5]) == forwards


def test_the_server_starts_again_on_what_was_journalled_of_all_this(attacked, wire):
    run = wire.run()
    wire.result(train(wire, message(run, 1, weights=ONES)).json())
    train(wire, message(run, 2, weights=[NAN] * 3))
    ack = wire.step(run, 3).json()
    attacked.server.kill()
    began = time.monotonic()
    attacked.server.start_again()
    assert time.monotonic() - began < 60
    wire = attacked.wire()
    assert "of its window failed" in wire.result(ack)["error"]
    wire.result(train(wire, message(run, 4, weights=ONES)).json())
    assert wire.result(wire.step(run, 5).json())["metrics"]["step"] == 1
