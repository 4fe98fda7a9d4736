"""Bodies of forward_backward, as the SDK writes them or not."""

import numpy as np
import pytest
from service.wire import PROTO

pb = pytest.importorskip("tinker.proto.tinker_public_pb2")
ONES = [1.0, 1.0, 1.0]


def tensor(values, dtype=None, shape=None):
    values = np.asarray(values)
    real = values.dtype.kind == "f"
    kind = np.float32 if real else np.int64
    out = pb.Tensor(dense=values.astype(kind).tobytes())
    out.dtype = dtype if dtype is not None else 1 if real else 2
    out.shape.extend(values.shape if shape is None else shape)
    return out


def message(run, seq_id, tokens=(1, 2, 3), loss="cross_entropy", config=None, **inputs):
    out = pb.ForwardBackwardRequest(model_id=run, seq_id=seq_id, loss_fn=loss)
    row = out.data.add()
    row.model_input.add().encoded_text.tokens = np.asarray(tokens, np.int32).tobytes()
    inputs = {"target_tokens": list(tokens)} | inputs
    for name, values in inputs.items():
        made = values if isinstance(values, pb.Tensor) else tensor(values)
        row.loss_fn_inputs[name].CopyFrom(made)
    for name, value in (config or {}).items():
        out.loss_fn_config[name] = value
    return out


def train(wire, made):
    bytes_ = made if isinstance(made, bytes) else made.SerializeToString()
    return wire.post("forward_backward", bytes_, PROTO)


NAN, INF = float("nan"), float("inf")
