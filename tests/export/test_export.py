"""`twinkle export`: a merged folder against peft's merge_and_unload, a GGUF file against the `gguf`
package, the file that the built-in model came from, and llama.cpp where it is installed."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytest.importorskip("twinkle._core", reason="the extension is not built: make build")

from parity import models  # noqa: E402

from twinkle import program  # noqa: E402
from twinkle.hub.models import _smollm2_gguf  # noqa: E402

FAMILIES = ("llama", "qwen2", "qwen3")
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROMPTS = [
    "What is the capital of France?", "Name three primary colours.", "Why is the sky blue?",
    "Add 17 and 25.", "Write a line about the sea.", "Who wrote Hamlet?", "What is a prime number?",
    "Translate 'good morning' into French.", "How many legs has a spider?", "What do bees make?",
]  # fmt: skip


def twinkle(*words):
    """The program's standard output."""
    if program.path() is None:
        pytest.skip("bin/twinkle is not built")
    done = subprocess.run(
        [sys.executable, "-c", "from twinkle.program import main; main()", *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def draw_model(family, tokenizer, folder, dtype=torch.float32, **more):
    """A small model with a tokenizer, whose heads, width and MLP differ."""
    torch.manual_seed(3)
    tokenizer.save_pretrained(folder)
    config = models.CONFIGS[family](
        vocab_size=len(tokenizer) + 5, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32 if family == "qwen3" else 16,
        max_position_embeddings=256, eos_token_id=tokenizer.eos_token_id, **more,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(folder)
    return folder


def draw_adapter(base, folder, targets=TARGETS, std=0.05):
    """peft's own adapter with random factors; its merged model in float32."""
    torch.manual_seed(4)
    model = peft.get_peft_model(
        models.load_reference(str(base)),
        peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, use_rslora=True),
    )
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=std)
    model.save_pretrained(folder)
    return folder, model.merge_and_unload()


@pytest.fixture(scope="module")
def tokenizer(tiny_llama_dir):
    return transformers.AutoTokenizer.from_pretrained(tiny_llama_dir)


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


@pytest.fixture(scope="module")
def real(smollm2_dir, tmp_path_factory):
    """An adapter of the built-in model, its merged model in transformers, folder of exports."""
    folder = tmp_path_factory.mktemp("real")
    adapter, merged = draw_adapter(smollm2_dir, folder / "adapter", ["q_proj", "v_proj"], 0.01)
    for kind in ("f16", "q8_0"):
        twinkle("export", adapter, "--to", "gguf", "--type", kind, "--output", folder / kind)
    return folder, merged


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


def logprob(llama, ids):
    """Mean log-probability of ids[1:]."""
    llama.reset()
    llama.eval(ids)
    logits = torch.tensor(np.array(llama.scores[: len(ids)]))
    logps = torch.log_softmax(logits.double(), dim=-1)
    return logps[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].mean().item()


def test_llama_cpp_gives_the_greedy_text_of_transformers(real, smollm2_dir):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    folder, merged = real
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    exact, small = (
        llama_cpp.Llama(str(folder / kind / f"model-{kind}.gguf"), n_ctx=256, logits_all=True,
                        verbose=False)
        for kind in ("f16", "q8_0")
    )  # fmt: skip
    losses = []
    for prompt in PROMPTS:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text).input_ids
        assert exact.tokenize(text.encode(), add_bos=True, special=True) == ids
        with torch.no_grad():
            reply = merged.generate(torch.tensor([ids]), max_new_tokens=32, do_sample=False)
        wanted = reply[0, len(ids) :].tolist()
        if wanted[-1] == tokenizer.eos_token_id:
            wanted.pop()
        tokens = exact.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0)
        assert [next(tokens) for _ in wanted] == wanted, prompt
        whole = ids + wanted
        losses.append((logprob(exact, whole), logprob(small, whole)))
    f16, q8 = np.mean(losses, axis=0)
    assert abs(f16 - q8) < 0.02


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


def test_the_commands_of_the_page_run(tokenizer, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/use-it-elsewhere.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    base = draw_model("llama", tokenizer, tmp_path / "base")
    draw_adapter(base, tmp_path / "outputs/latest/adapter")
    monkeypatch.chdir(tmp_path)
    ours = [shlex.split(line)[1:] for line in commands if line.startswith("twinkle ")]
    assert [words[0] for words in ours] == ["export", "chat", "export"]
    for words in ours:
        twinkle(*words)
    named = {word for line in commands for word in line.split() if word.startswith("outputs/")}
    assert not [name for name in sorted(named) if not Path(name).exists()]
