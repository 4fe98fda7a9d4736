"""Bodies of requests and answers: JSON, or JSON and its arrays in one safetensors file, whose
metadata has the JSON as `json` and whose tensors are named by the JSON pointers of their places,
where the JSON has null."""

import json
import math
import numbers
from collections.abc import Mapping

import numpy as np

from twinkle import checks
from twinkle.errors import InvalidError, require

JSON, TENSORS = "application/json", "application/x-safetensors"
_KINDS = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip
_NAMES = {np.dtype(kind): name for name, kind in _KINDS.items()}
_DEEPEST = 64  # lists and dicts within each other


def encode(fields):
    """(Content-Type, bytes) of a request's fields: JSON's values, NumPy's, and tensors; JSON unless
    there is an array among them. InvalidError: a value that neither form has, by its name."""
    arrays = {}
    text = json.dumps(_plain(fields, "", arrays), ensure_ascii=False).encode()
    if not arrays:
        return JSON, text
    head, begin = {"__metadata__": {"json": text.decode()}}, 0
    for path, array in arrays.items():
        span = [begin, begin + array.nbytes]
        head[path] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": span}
        begin = span[1]
    head = json.dumps(head, ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    parts = [len(head).to_bytes(8, "little"), head, *(a.tobytes() for a in arrays.values())]
    return TENSORS, b"".join(parts)


def _plain(value, path, arrays):
    """The value as JSON has it; arrays[path] are those in it, in whose places it has null."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return value if value is None else bool(value)
    if isinstance(value, str):
        return checks.utf8(_what(path), value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        require(math.isfinite(value), f"{_what(path)} is {value}, it must be a finite number")
        return float(value)
    require(path.count("/") <= _DEEPEST, f"{_what(path)} is deeper than {_DEEPEST} levels")
    if isinstance(value, Mapping):
        checks.mapping(_what(path), value)
        return {key: _plain(each, f"{path}/{_key(key)}", arrays) for key, each in value.items()}
    if isinstance(value, (list, tuple, range)):
        if all(type(each) is int for each in value):
            return list(value)
        return [_plain(each, f"{path}/{i}", arrays) for i, each in enumerate(value)]
    array = _array(value)
    if array is None or array.dtype.newbyteorder("<") not in _NAMES:
        must = "text, a number, True, False, None, an array of numbers, or lists and dicts of these"
        checks.refuse(_what(path), value, f"{must}: a server runs no code of its clients")
    if array.ndim == 0:
        return _plain(array.item(), path, arrays)
    arrays[path] = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return None


def _array(value):
    """The NumPy array of one or of a tensor of torch, or None."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        try:
            return value.numpy()
        except TypeError:  # bfloat16, which NumPy lacks
            return value.float().numpy()
    return value if isinstance(value, np.ndarray) else None


def _what(path):
    """A place as errors name it: 'client: inputs/0/labels'."""
    return f"client: {path[1:] or 'the request'}"


def _key(key):
    return key.replace("~", "~0").replace("/", "~1")


def decode(kind, data):
    """The value of a body of Content-Type `kind`, with NumPy arrays. InvalidError: it is of neither
    form, or cut."""
    try:
        return _with_arrays(data) if kind == TENSORS else json.loads(data)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise InvalidError(f"client: a body is no {kind}: {error}") from None


def _with_arrays(data):
    begin = 8 + int.from_bytes(data[:8], "little")
    require(8 < begin <= len(data), "its head is longer than the body")
    head = json.loads(data[8:begin])
    value = json.loads(head.pop("__metadata__")["json"])
    for path, tensor in head.items():
        kind, (first, last) = np.dtype(_KINDS[tensor["dtype"]]), tensor["data_offsets"]
        size = math.prod(tensor["shape"]) * kind.itemsize
        require(0 <= first <= last == first + size, f"{path} has wrong data_offsets")
        require(begin + last <= len(data), f"{path} is cut")
        array = np.frombuffer(data[begin + first : begin + last], kind).reshape(tensor["shape"])
        _put(value, path, array.copy())
    return value


def _put(value, path, array):
    *way, last = [k.replace("~1", "/").replace("~0", "~") for k in path.split("/")[1:]]
    for key in way:
        value = value[int(key) if isinstance(value, list) else key]
    last = int(last) if isinstance(value, list) else last
    require(value[last] is None, f"{path} is not null in its json")
    value[last] = array
