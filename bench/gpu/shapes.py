"""Models of published shapes with drawn weights: what they compute means nothing, what it takes is
what the published ones take. `TINY` has the same families in small, to rehearse with."""

import hashlib
import json
import math
from pathlib import Path

NAMES = {
    "135M": "SmolLM2-135M's shape",
    "0.6B": "Qwen3-0.6B's shape",
    "4B": "Qwen3-4B's shape",
    "8B": "Llama-3.1-8B's shape",
    "head": "a head alone",
}


def config(family, sizes, heads, vocab, tied=True):
    """sizes: hidden, inner, layers; heads: of queries, of keys, their size."""
    hidden, inner, layers = sizes
    queries, keys, head_dim = heads
    return {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family]],
        "model_type": family, "dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": queries, "num_key_value_heads": keys, "head_dim": head_dim,
        "vocab_size": vocab, "tie_word_embeddings": tied, "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "attention_bias": False,
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


REAL = {
    "135M": config("llama", (576, 1536, 30), (9, 3, 64), 49152),
    "0.6B": config("qwen3", (1024, 3072, 28), (16, 8, 128), 151936),
    "4B": config("qwen3", (2560, 9728, 36), (32, 8, 128), 151936),
    "8B": config("llama", (4096, 14336, 32), (32, 8, 128), 128256, tied=False),
    "head": config("qwen3", (4096, 128, 1), (1, 1, 128), 151936),
}
TINY = {
    "135M": config("llama", (48, 64, 2), (3, 1, 16), 256),
    "0.6B": config("qwen3", (32, 64, 2), (4, 2, 16), 320),
    "4B": config("qwen3", (48, 96, 2), (4, 2, 16), 320),
    "8B": config("llama", (64, 96, 2), (4, 2, 16), 256, tied=False),
    "head": config("qwen3", (64, 32, 1), (1, 1, 16), 512),
}


def tensors(of):
    """[{name: shape}], a file each: what is outside the layers, then layer by layer."""
    hidden, inner, head = of["hidden_size"], of["intermediate_size"], of["head_dim"]
    queries, keys = (head * of[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    outside = {
        "model.embed_tokens.weight": (of["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not of["tie_word_embeddings"]:
        outside["lm_head.weight"] = (of["vocab_size"], hidden)
    layer = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    if of["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    layers = range(of["num_hidden_layers"])
    return [outside] + [
        {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
        for index in layers
    ]


def drawn(shape, device, draws):
    """Norms are 1; of others the standard deviation leaves a row's size as it is. bfloat16, on the
    CPU."""
    import torch

    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    values = torch.empty(shape, dtype=torch.bfloat16, device=device)
    return values.normal_(0, 1 / math.sqrt(shape[1]), generator=draws).cpu()


def written(folder, of, device="cpu", seed=0):
    """The directory of the model with this config.json below `folder`: written once, file by file,
    its index last, and found again by the hash of the config."""
    import torch
    from safetensors.torch import save_file
    from tqdm import tqdm

    text = json.dumps(of, indent=1, sort_keys=True)
    out = Path(folder) / hashlib.sha256(text.encode()).hexdigest()[:12]
    index = out / "model.safetensors.index.json"
    if index.exists():
        return str(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(text)
    draws = torch.Generator(device).manual_seed(seed)
    files = tensors(of)
    places, size = {}, 2 * sum(math.prod(shape) for file in files for shape in file.values())
    with tqdm(total=size, unit="B", unit_scale=True, desc="writing a model") as bar:
        for number, file in enumerate(files, 1):
            name = f"model-{number:05}-of-{len(files):05}.safetensors"
            values = {key: drawn(shape, device, draws) for key, shape in file.items()}
            save_file(values, out / name, metadata={"format": "pt"})
            places |= dict.fromkeys(file, name)
            bar.update(2 * sum(math.prod(shape) for shape in file.values()))
    index.write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": places}))
    return str(out)
