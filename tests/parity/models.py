"""Small random models of every family, drawn from a seed and written as transformers writes them.

Families, rope kinds, tied heads, and windows (llama, which has none: biases) are crossed, so that
each combination comes once; everything else is drawn.
"""

import functools
import json
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from parity.seed import SEED

FAMILIES = ("llama", "qwen2", "qwen3")
ROPES = ("default", "linear", "yarn", "llama3")
COUNT = len(FAMILIES) * len(ROPES) * 2 * 2
# One of every family and rope kind; tied or not, and windowed, biased or not, in turn.
ONE_OF_EACH = [index + 12 * ((index % 3 + index // 3) % 4) for index in range(12)]
MAX_POSITIONS = 256
LENGTHS = (1, 2, 3, 5, 8, 17, 31, 33, 63, 65, 97, 130)

CONFIGS = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}


@dataclass
class Case:
    """One drawn model: the directory both sides read, and what to feed them."""

    index: int
    name: str
    directory: str
    sequences: list  # each {"input_ids", "labels", "weights"}
    prompts: list
    token_budget: int  # our engine's: small ones cut the batch into several passes

    @functools.cached_property
    def reference(self):
        """Read anew at every first use in a test, since tests may change it."""
        return load_reference(self.directory)

    def fresh_reference(self):
        return load_reference(self.directory)


def load_reference(directory, dtype=torch.float32):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager"
    )
    return model.eval()


@dataclass
class Drawn:
    """The fields of a config, and how its files are written."""

    family: str
    rope: str
    fields: dict
    old_style: bool  # config.json as transformers 4 wrote it: rope_theta and rope_scaling
    sharded: bool
    token_budget: int
    marks: list = field(default_factory=list)


def draw(index):
    rng = random.Random(f"{SEED}/{index}")
    family, rope = FAMILIES[index % 3], ROPES[index // 3 % 4]
    tied, special = index // 12 % 2 == 0, index // 24 % 2 == 0
    heads = rng.randint(1, 8)
    groups = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    layers = rng.randint(1, 4)
    fields = {
        "vocab_size": rng.randint(90, 700),
        "intermediate_size": rng.randint(17, 150),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // groups,
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]),
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    marks = [family, rope, "tied" if tied else "untied", f"{heads}over{heads // groups}"]
    marks += draw_width(rng, fields, family, heads)
    marks += draw_biases(rng, fields, family, special)
    if family != "llama" and special:
        draw_windows(rng, fields, layers)
        marks.append("windowed")
    fields["rope_parameters"] = draw_rope(rng, rope)
    drawn = Drawn(family, rope, fields, rng.random() < 0.5, rng.random() < 0.3, 4096, marks)
    drawn.token_budget = rng.choice([48, 4096])
    return drawn


def draw_width(rng, fields, family, heads):
    """head_dim is the share of the width or one of its own; widths may be odd, heads are not."""
    head_dim = 2 * rng.randint(2, 17)
    if family != "qwen3" and rng.random() < 0.5:
        fields["hidden_size"] = heads * head_dim
        return []
    width = rng.randint(17, 120)
    fields["hidden_size"] = width - width % heads if family == "llama" else width
    fields["head_dim"] = head_dim
    return [f"head{head_dim}"]


def draw_biases(rng, fields, family, special):
    if family == "llama" and special:
        attention, mlp = rng.choice([(True, False), (False, True), (True, True)])
        fields |= {"attention_bias": attention, "mlp_bias": mlp}
    if family == "qwen3":
        fields["attention_bias"] = rng.random() < 0.5
    return ["biased"] if fields.get("attention_bias") or fields.get("mlp_bias") else []


def draw_windows(rng, fields, layers):
    fields |= {"use_sliding_window": True, "sliding_window": rng.choice([1, 2, 7, 16, 33])}
    if rng.random() < 0.5:
        fields["max_window_layers"] = rng.randrange(layers)
    else:
        kinds = rng.choices(["sliding_attention", "full_attention"], k=layers)
        kinds[rng.randrange(layers)] = "sliding_attention"
        fields["layer_types"] = kinds


def draw_rope(rng, kind):
    rope = {"rope_type": kind, "rope_theta": rng.choice([500.0, 10000.0, 1e6])}
    if kind == "linear":
        rope["factor"] = rng.uniform(1.5, 8)
    if kind == "llama3":
        low = rng.uniform(0.5, 2)
        rope |= {"factor": rng.uniform(2, 16), "low_freq_factor": low}
        rope |= {"high_freq_factor": low * rng.uniform(1.5, 6)}
        rope |= {"original_max_position_embeddings": rng.choice([16, 64, 200])}
    if kind == "yarn":
        rope |= {"factor": rng.uniform(2, 16)}
        rope |= {"original_max_position_embeddings": rng.choice([16, 64, 200])}
        extra = {"beta_fast": rng.uniform(8, 40), "beta_slow": rng.uniform(0.5, 2)}
        rope |= rng.choice([{}, extra, {"truncate": False}])
        scales = {"mscale": rng.uniform(0.5, 1.5), "mscale_all_dim": rng.uniform(0.5, 1.5)}
        rope |= rng.choice([{}, {"attention_factor": rng.uniform(0.5, 1.5)}, scales])
    return rope


@functools.cache
def _root():
    return tempfile.TemporaryDirectory(prefix="twinkle-parity-")


@functools.cache
def case(index):
    """Case number `index`, made at the first call."""
    drawn = draw(index)
    directory = Path(_root().name) / str(index)
    torch.manual_seed(SEED + index)
    config = CONFIGS[drawn.family](**drawn.fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomise(model)
    size = "20KB" if drawn.sharded else "5GB"
    model.save_pretrained(directory, max_shard_size=size)
    if drawn.old_style:
        rewrite_config(directory / "config.json", "layer_types" in drawn.fields)
    rng = random.Random(f"{SEED}/{index}/data")
    vocab = config.vocab_size
    lengths = [*rng.sample(LENGTHS, 5), 80]
    prompts = [[rng.randrange(vocab) for _ in range(n)] for n in rng.sample(LENGTHS[:-1], 3)]
    sequences = [draw_sequence(rng, n, vocab) for n in lengths]
    name = f"seed{SEED}-{index:02d}-" + "-".join(drawn.marks)
    return Case(index, name, str(directory), sequences, prompts, drawn.token_budget)


def name_of(index):
    return f"seed{SEED}-{index:02d}-" + "-".join(draw(index).marks)


@torch.no_grad()
def randomise(model):
    """Weights of a size at which every one matters for the logits; biases and norms too."""
    for name, value in model.named_parameters():
        noise = torch.randn_like(value)
        if value.dim() == 1:
            value.copy_(0.3 * noise + (1 if "norm" in name else 0))
        elif "embed_tokens" in name:
            value.copy_(0.5 * noise)
        else:
            value.copy_(1.4 * noise / value.shape[1] ** 0.5)
    for name, value in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # a router's
            value.copy_(0.2 * torch.randn_like(value))


def rewrite_config(file, keep_layer_types):
    """As most published checkpoints have it: rope_theta and rope_scaling beside each other."""
    config = json.loads(file.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype", "float32")
    if not keep_layer_types:
        config.pop("layer_types", None)
    file.write_text(json.dumps(config, indent=2))


def draw_sequence(rng, length, vocab):
    """Labels are the next tokens, a quarter of them ignored; any token may follow the last."""
    ids = [rng.randrange(vocab) for _ in range(length + 1)]
    labels = [token if rng.random() < 0.75 else -100 for token in ids[1:]]
    weights = [rng.uniform(0.25, 2) for _ in labels]
    return {"input_ids": ids[:-1], "labels": labels, "weights": weights}
