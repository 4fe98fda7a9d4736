"""A model and an adapter of zeros, to be read for a while: sparse files, which take no place."""

import json
import math
from itertools import product

LAYERS, WIDTH, INNER = 2, 64, 1024
MLP = {"gate_proj": [INNER, WIDTH], "up_proj": [INNER, WIDTH], "down_proj": [WIDTH, INNER]}
LLAMA = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
}  # fmt: skip
WIDE_LORA = {"r": 4096, "lora_alpha": 1, "target_modules": list(MLP)}


def write_zeros(directory, config, tensors, shapes):
    """Two files, of which the second is sparse."""
    header, end = {}, 0
    for key, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    directory.mkdir()
    (directory / config[0]).write_text(json.dumps(config[1]))
    with (directory / tensors).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return str(directory)


def zero_llama(directory, vocab_size):
    """A model of 4 * WIDTH bytes per token of its vocabulary, and a little more."""
    shapes = {"model.embed_tokens.weight": [vocab_size, WIDTH], "model.norm.weight": [WIDTH]}
    for layer in (f"model.layers.{i}." for i in range(LAYERS)):
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{name}.weight"] = [WIDTH]
        for name in "qkvo":
            shapes[f"{layer}self_attn.{name}_proj.weight"] = [WIDTH, WIDTH]
        shapes |= {f"{layer}mlp.{name}.weight": shape for name, shape in MLP.items()}
    config = "config.json", {**LLAMA, "vocab_size": vocab_size}
    return write_zeros(directory, config, "model.safetensors", shapes)


def zero_adapter(directory):
    """A PEFT directory of 107 MB for it."""
    shapes, rank = {}, WIDE_LORA["r"]
    for layer, (name, (rows, columns)) in product(range(LAYERS), MLP.items()):
        key = f"base_model.model.model.layers.{layer}.mlp.{name}.lora_"
        shapes |= {key + "A.weight": [rank, columns], key + "B.weight": [rows, rank]}
    config = "adapter_config.json", {"peft_type": "LORA", **WIDE_LORA}
    return write_zeros(directory, config, "adapter_model.safetensors", shapes)
