"""`twinkle export`: a merged folder against peft's merge_and_unload, a GGUF file against the `gguf`
package and the file that the built-in model came from; perplexity against transformers'."""

import json
import math

import numpy as np
import pytest
from export.exported import draw_adapter, draw_model, peft, torch, transformers, twinkle
from parity import models

from twinkle.hub.models import _smollm2_gguf

FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.fixture(scope="module", params=FAMILIES)
def drawn(request, tokenizer, tmp_path_factory):
    """(base, adapter, merged in transformers)"""
    folder = tmp_path_factory.mktemp(request.param)
    tied = request.param != "qwen2"
    base = draw_model(request.param, tokenizer, folder / "base", tie_word_embeddings=tied)
    adapter, merged = draw_adapter(base, folder / "adapter")
    return base, adapter, merged


def weights_of(model):
    """Without a tied head."""
    tied = model.config.tie_word_embeddings
    return {n: w for n, w in model.state_dict().items() if not (tied and n == "lm_head.weight")}


def test_a_merged_folder_is_what_peft_merges(drawn, tmp_path):
    base, adapter, merged = drawn
    before = {file.name: file.read_bytes() for file in base.iterdir()}
    twinkle("export", adapter, "--output", tmp_path / "out")
    ours = models.load_reference(tmp_path / "out")
    ids = torch.arange(24)[None] * 7 % 300
    with torch.no_grad():
        assert torch.allclose(ours(ids).logits, merged(ids).logits, atol=2e-5)
    for name, weight in weights_of(merged).items():
        assert torch.allclose(ours.state_dict()[name], weight, atol=1e-6), name
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template and tokenizer("Hello!").input_ids
    assert {file.name: file.read_bytes() for file in base.iterdir()} == before


def test_bfloat16_weights_are_rounded_as_peft_rounds_them(tokenizer, tmp_path):
    base = draw_model("llama", tokenizer, tmp_path / "base", torch.bfloat16)
    adapter, _ = draw_adapter(base, tmp_path / "adapter")
    merged = peft.PeftModel.from_pretrained(
        models.load_reference(str(base), torch.bfloat16), adapter
    ).merge_and_unload()
    twinkle("merge", base, adapter, tmp_path / "out")
    ours = models.load_reference(tmp_path / "out", torch.bfloat16).state_dict()
    different = total = 0
    for name, weight in weights_of(merged).items():
        assert ours[name].dtype == torch.bfloat16
        assert torch.allclose(ours[name].float(), weight.float(), rtol=0.01, atol=1e-5), name
        different += (ours[name] != weight).sum().item()
        total += weight.numel()
    assert different < 1e-3 * total  # sums in another order, next to the middle of two


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in names:
        return f"{names[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    part = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }[part]  # fmt: skip
    return f"blk.{layer}.{part}.{kind}"


def in_ggufs_order(name, weight, config):
    """Rows of llama's q and k, as llama.cpp's converter permutes them."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = heads.get(name.split(".")[-2])
    if config.model_type != "llama" or count is None:
        return weight
    parts = weight.reshape(count, 2, weight.shape[0] // count // 2, *weight.shape[1:])
    return parts.swapaxes(1, 2).reshape(weight.shape)


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_tensors_and_keys_are_as_the_gguf_package_reads_them(drawn, tokenizer, tmp_path, kind):
    gguf = pytest.importorskip("gguf")
    _, adapter, merged = drawn
    twinkle("export", adapter, "--to", "gguf", "--type", kind, "--output", tmp_path / "out")
    reader = gguf.GGUFReader(tmp_path / "out" / f"model-{kind}.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    expected = {gguf_name(name): (name, w) for name, w in weights_of(merged).items()}
    assert set(tensors) == set(expected)
    for gguf_id, (name, weight) in expected.items():
        values = in_ggufs_order(name, weight.numpy(), merged.config)
        tensor = tensors[gguf_id]
        wanted = "F32" if weight.dim() == 1 else kind.upper()
        assert tensor.tensor_type.name == wanted, gguf_id
        assert list(tensor.shape) == list(values.shape[::-1])
        packed = gguf.quants.quantize(values, tensor.tensor_type)
        got = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
        exact = gguf.quants.dequantize(packed, tensor.tensor_type).reshape(values.shape)
        # Factors are multiplied in another order: a value next to the middle of two may fall on
        # the other side.
        step = np.abs(values).max() * {"F32": 1e-6, "F16": 1e-3, "Q8_0": 1 / 120}[wanted]
        assert np.abs(got - exact).max() <= step, gguf_id
        assert (got != exact).mean() < 0.02 or wanted == "F32", gguf_id
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config, family = merged.config, merged.config.model_type
    assert {
        "general.architecture": family,
        f"{family}.block_count": config.num_hidden_layers,
        f"{family}.context_length": config.max_position_embeddings,
        f"{family}.embedding_length": config.hidden_size,
        f"{family}.feed_forward_length": config.intermediate_size,
        f"{family}.attention.head_count": config.num_attention_heads,
        f"{family}.attention.head_count_kv": config.num_key_value_heads,
        f"{family}.attention.key_length": 32 if family == "qwen3" else 16,
        f"{family}.vocab_size": config.vocab_size,
        "general.file_type": {"f16": 1, "q8_0": 7}[kind],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.bos_token_id": tokenizer.bos_token_id,
        "tokenizer.ggml.padding_token_id": tokenizer.pad_token_id,
        "tokenizer.chat_template": tokenizer.chat_template,
    }.items() <= fields.items()
    assert math.isclose(fields[f"{family}.attention.layer_norm_rms_epsilon"], 1e-6, rel_tol=1e-6)
    words = fields["tokenizer.ggml.tokens"]
    assert words[: len(tokenizer)] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert len(words) == config.vocab_size


def test_the_built_in_models_tokenizer_is_that_of_the_file_that_it_came_from(real):
    gguf = pytest.importorskip("gguf")
    folder, _ = real
    ours, theirs = (
        {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}
        for file in (folder / "f16" / "model-f16.gguf", _smollm2_gguf())
    )
    shared = [name for name in theirs if name.startswith(("tokenizer.", "llama."))]
    assert len(shared) > 15
    for name in shared:
        if isinstance(theirs[name], float):
            assert math.isclose(ours[name], theirs[name], rel_tol=1e-6), name
        else:
            assert ours[name] == theirs[name], name


@pytest.mark.parametrize("form", ["text", "chat"])
def test_perplexity_is_that_of_transformers(tiny_llama_dir, tokenizer, tmp_path, form):
    model = models.load_reference(tiny_llama_dir)
    rows, total, count = [], 0.0, 0
    for text in ("Hello! I am a helpful assistant. Who are you?", "What is your name?"):
        if form == "text":
            rows.append({"text": text})
            ids = tokenizer(text, return_tensors="pt").input_ids
            labels = ids.clone()
        else:
            chat = [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]
            rows.append({"messages": chat})
            whole = tokenizer.apply_chat_template(chat, tokenize=False)
            head = tokenizer.apply_chat_template(
                chat[:1], tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(whole, return_tensors="pt").input_ids
            labels = ids.clone()
            labels[0, : len(tokenizer(head).input_ids)] = -100
        with torch.no_grad():
            loss = model(ids, labels=labels).loss.item()
        scored = int((labels[0, 1:] != -100).sum())
        total, count = total + loss * scored, count + scored
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    twinkle(
        "eval", tiny_llama_dir, "--task", "perplexity", "--data", tmp_path / "rows.jsonl",
        "--mixed-precision", "no", "--json", tmp_path / "result.json",
    )  # fmt: skip
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["num_tokens"] == count
    assert math.isclose(result["perplexity"], math.exp(total / count), rel_tol=1e-4)
