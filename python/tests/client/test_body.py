"""Bodies of requests: JSON, or a safetensors file, which the package safetensors reads and writes
alike."""

import json
import subprocess
import sys

import numpy as np
import pytest

from twinkle.errors import InvalidError
from twinkle_client import body

safetensors = pytest.importorskip("safetensors.numpy")


def drawn():
    rng = np.random.default_rng(0)
    return {
        "adapter_name": "ä\n",
        "inputs": [
            {"input_ids": rng.integers(0, 9, 5), "a/b~c": rng.random((2, 3)).astype("float32")},
            {"messages": [{"role": "user", "content": "hi"}], "labels": [1, -100], "x": None},
        ],
        "scale": np.float32(0.1),
        "count": np.int64(3),
        "on": True,
        "nothing": np.zeros((0, 4), "int32"),
    }


def same(left, right):
    if isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        return left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def test_what_has_arrays_is_a_safetensors_file_whose_tensors_are_named_by_their_places():
    given = drawn()
    kind, data = body.encode(given)
    assert kind == "application/x-safetensors"
    tensors = safetensors.load(data)
    first = given["inputs"][0]
    places = {"/inputs/0/input_ids": first["input_ids"], "/inputs/0/a~1b~0c": first["a/b~c"]}
    places["/nothing"] = given["nothing"]
    assert same(tensors, places)
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    left = json.loads(head["__metadata__"]["json"])
    assert left["inputs"][0] == {"input_ids": None, "a/b~c": None}
    assert np.float32(left["scale"]) == given["scale"]
    assert same(body.decode(kind, data), given)


def test_the_package_safetensors_writes_what_is_read():
    array = np.arange(6, dtype="float64").reshape(2, 3)
    data = safetensors.save({"/a/1": array}, {"json": '{"a": [0, null]}'})
    got = body.decode(body.TENSORS, data)
    assert got["a"][0] == 0 and same(got["a"][1], array)


@pytest.mark.parametrize("kind", list(body._KINDS.values()))
def test_every_kind_of_number_keeps_its_bits(kind):
    array = np.frombuffer(np.random.default_rng(1).bytes(64), "u1").copy()
    array = array % 2 == 1 if kind == "?" else array.view(kind)
    for one in (
        array,
        array[::2],
        array.reshape(2, -1).T,
        array.astype(array.dtype.newbyteorder(">")),
    ):
        got = body.decode(*body.encode({"a": one}))["a"]
        assert got.shape == one.shape and got.tobytes() == one.astype(kind).tobytes()


def test_tensors_of_torch_are_arrays():
    torch = pytest.importorskip("torch")
    given = torch.tensor([0.1, 2.0], requires_grad=True)
    got = body.decode(*body.encode({"a": given, "b": given.bfloat16(), "c": torch.tensor(3)}))
    assert got["a"].tobytes() == given.detach().numpy().tobytes()
    assert got["b"].dtype == np.float32 and got["b"][1] == 2.0 and got["c"] == 3


def test_without_arrays_it_is_json():
    given = {"a": [1, 2.5, "x", None, False, range(2), (3,)], "b": {}}
    kind, data = body.encode(given)
    assert kind == "application/json"
    assert json.loads(data) == {"a": [1, 2.5, "x", None, False, [0, 1], [3]], "b": {}}


def loop():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [0, {"b": object()}]}, r"client: a/1/b is <object .*it must be text, a number"),
        ({"a": {1}}, r"client: a is \{1\}, it must be"),
        ({"a": b"bytes"}, "client: a is b'bytes'"),
        ({"a": np.array(["x"])}, "client: a is array"),
        ({"a": np.array([1j])}, "client: a is array"),
        ({"a": np.datetime64("2026-01-01")}, "client: a is"),
        ({"a": float("inf")}, "client: a is inf, it must be a finite number"),
        ({"a": np.float32("nan")}, "client: a is nan, it must be a finite number"),
        ({"a": {1: 2}}, "client: a is .*, it must be a dict with names as keys"),
        ({"a": "\ud800"}, "client: a"),
        (loop(), "is deeper than 64 levels"),
    ],
)
def test_a_value_that_no_body_has_is_named(value, text):
    with pytest.raises(InvalidError, match=text):
        body.encode(value)


def head(offsets=(0, 8), shape=(1,), name="/a", text='{"a": null}', dtype="I64"):
    tensor = {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}
    data = json.dumps({"__metadata__": {"json": text}, name: tensor}).encode()
    return len(data).to_bytes(8, "little") + data + b"\0" * 8


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff" * 8, b"\xff" * 80, (2).to_bytes(8, "little") + b"{}", head()[:-1],
        head((0, 9)), head((-8, 0)), head((8, 16)), head((4, 8)), head(shape=(2,)),
        head(shape=(-1,)), head(shape=(2**62, 4)), head(shape=("a",)), head(name="/b"),
        head(name="/a/b"), head(name="a"), head(name=""), head(text='{"a": 1}'), head(text="{"),
        head(text="[]"), head(dtype="F8"), head(offsets=(0,)),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_refused(data):
    with pytest.raises(InvalidError, match=r"a body is no application/x-safetensors"):
        body.decode(body.TENSORS, data)


def test_a_file_that_is_cut_anywhere_is_refused():
    _, data = body.encode(drawn())
    for end in range(len(data)):
        with pytest.raises(InvalidError):
            body.decode(body.TENSORS, data[:end])


def test_importing_the_client_loads_neither_torch_nor_the_engine():
    code = (
        "import sys, twinkle_client, twinkle_client.model, twinkle_client.sampler; "
        "from twinkle import init_twinkle_client; "
        "assert init_twinkle_client is twinkle_client.init_twinkle_client; "
        "print(sorted({'torch', 'peft', 'ray', 'twinkle._core'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
