"""Models of the families with experts and with the gated delta rule, with drawn weights, written
once by transformers: what they compute means nothing, what it takes is what a trained one takes.
And what work one token is there, for the limits."""

import hashlib
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

SEED = 18
SIZES = {
    "vocab_size": 32768, "hidden_size": 512, "num_hidden_layers": 12,
    "max_position_embeddings": 4096, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 1e6}
# A quarter of Qwen3-30B-A3B's layers, half of Qwen3.5-0.8B's.
MODELS = {
    "qwen3_moe": ("Qwen3MoeConfig", SIZES | {
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "moe_intermediate_size": 256, "num_experts": 32, "num_experts_per_tok": 4,
        "norm_topk_prob": True, "rope_parameters": ROPE,
    }),
    "qwen3_5": ("Qwen3_5TextConfig", SIZES | {
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
        "intermediate_size": 1792, "tie_word_embeddings": True,
        "linear_num_key_heads": 8, "linear_num_value_heads": 8,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "rope_parameters": ROPE | {"partial_rotary_factor": 0.25},
    }),
}  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    """A linear of one layer: `held` of its kind, of which a token goes through `chosen`."""

    name: str
    inputs: int
    outputs: int
    layers: int
    held: int = 1
    chosen: int = 1

    @property
    def size(self):
        return self.layers * self.inputs * self.outputs

    def read(self, tokens):
        """How many of those held so many tokens choose, where each choice is as likely."""
        return self.held * (1 - (1 - self.chosen / self.held) ** tokens)


@dataclass(frozen=True)
class DrawnShape:
    """The part of a Shape that limits.py reads."""

    matrices: tuple
    adapted: tuple  # their names
    vocab: int
    hidden: int
    tied: bool
    attention: int  # width of all query heads
    attention_layers: int
    kept: int
    state: int = 0  # numbers of a sequence's states, float32

    @property
    def routed(self):
        return any(m.held > 1 for m in self.matrices)

    @property
    def layer_weights(self):
        """That a token is multiplied with."""
        return sum(m.chosen * m.size for m in self.matrices)

    @property
    def head_weights(self):
        return self.vocab * self.hidden

    @property
    def bytes(self):
        return 2 * (self.layer_weights + self.head_weights)

    @property
    def resident_bytes(self):
        held = sum(m.held * m.size for m in self.matrices)
        return 2 * (held + self.head_weights * (1 if self.tied else 2))

    def step_bytes(self, num_sequences):
        read = sum(m.read(num_sequences) * m.size for m in self.matrices)
        return 2 * (read + self.head_weights) + 4 * num_sequences * self.state

    @property
    def recurrence(self):
        """S' k, k u' and S' q of each state."""
        return 6 * self.state

    def adapter_weights(self, rank):
        return rank * sum(m.held * m.layers * (m.inputs + m.outputs) for m in self._adapted())

    def adapter_products(self, rank):
        return rank * sum(m.chosen * m.layers * (m.inputs + m.outputs) for m in self._adapted())

    def _adapted(self):
        return [m for m in self.matrices if m.name in self.adapted]


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
EXPERTS = ("gate_up_proj", "down_proj")


def shape_of(config, adapted=None):
    """adapted: names of linears; None: all but a router."""
    of = Config(**config)
    matrices = of.matrices()
    names = tuple(m.name for m in matrices if m.name != "gate")
    return DrawnShape(
        matrices, adapted or names, of["vocab_size"], of["hidden_size"],
        of.get("tie_word_embeddings", False), of.heads, of.attending, of.kept(), of.state(),
    )  # fmt: skip


class Config(dict):
    """config.json's fields, and widths of them."""

    @property
    def heads(self):
        return self["num_attention_heads"] * self["head_dim"]

    @property
    def keys(self):
        return self["num_key_value_heads"] * self["head_dim"]

    @property
    def delta(self):
        """Widths of all keys and of all values of the gated delta rule."""
        return tuple(
            self[f"linear_num_{of}_heads"] * self[f"linear_{of}_head_dim"]
            for of in ("key", "value")
        )

    @property
    def attending(self):
        """Layers that attend: of a model with the delta rule every fourth."""
        layers = self["num_hidden_layers"]
        return layers // 4 if "linear_num_key_heads" in self else layers

    @property
    def recurrent(self):
        return self["num_hidden_layers"] - self.attending

    def matrices(self):
        width, layers, n = self["hidden_size"], self["num_hidden_layers"], self.attending
        gated = 2 if self.recurrent else 1  # the output's gate lies beside the queries
        out = [
            Matrix("q_proj", width, gated * self.heads, n),
            Matrix("k_proj", width, self.keys, n),
            Matrix("v_proj", width, self.keys, n),
            Matrix("o_proj", self.heads, width, n),
        ]
        if self.recurrent:
            (keys, values), heads = self.delta, self["linear_num_value_heads"]
            sizes = {"qkv": 2 * keys + values, "z": values, "a": heads, "b": heads}
            out += [Matrix(f"in_proj_{k}", width, v, self.recurrent) for k, v in sizes.items()]
            out.append(Matrix("out_proj", values, width, self.recurrent))
        if "num_experts" in self:
            inner = self["moe_intermediate_size"]
            experts = layers, self["num_experts"], self["num_experts_per_tok"]
            out.append(Matrix("gate", width, self["num_experts"], layers))
            out.append(Matrix("gate_up_proj", width, 2 * inner, *experts))
        else:
            inner, experts = self["intermediate_size"], (layers,)
            out += [Matrix(f"{name}_proj", width, inner, layers) for name in ("gate", "up")]
        return (*out, Matrix("down_proj", inner, width, *experts))

    def kept(self):
        """As Shape.kept, over all layers."""
        width, layers = self["hidden_size"], self["num_hidden_layers"]
        if "num_experts" in self:
            inner = self["num_experts_per_tok"] * self["moe_intermediate_size"]
        else:
            inner = self["intermediate_size"]
        numbers = layers * (4 * width + 2 * inner)
        gate = self.heads if self.recurrent else 0
        numbers += self.attending * (2 * self.heads + gate + 2 * self.keys)
        if self.recurrent:  # q, k, v, z and the rule's output
            keys, values = self.delta
            numbers += self.recurrent * (2 * keys + 3 * values)
        return numbers

    def state(self):
        if not self.recurrent:
            return 0
        return self.recurrent * self["linear_key_head_dim"] * self.delta[1]


def draw(model, seed):
    """The standard deviation of matrices leaves a row's size as it is; norms stay as they are made;
    decays are those of a trained model's size."""
    import torch

    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("A_log"):
                wide = torch.empty(value.shape, dtype=torch.float32)
                value.copy_(wide.uniform_(0.05, 3, generator=draws).log())
            elif name.endswith("dt_bias"):
                value.normal_(0, 0.5, generator=draws)
            elif value.dim() > 1:
                value.normal_(0, 1 / math.sqrt(value.shape[-1]), generator=draws)


def written(folder, name, models=None):
    """The directory of a model of MODELS below `folder`: written once, found again by its config's
    hash."""
    kind, fields = (models or MODELS)[name]
    digest = hashlib.sha256(json.dumps([kind, fields, SEED], sort_keys=True).encode()).hexdigest()
    out = Path(folder) / f"{name}-{digest[:12]}"
    if out.exists():
        return str(out)
    import torch
    import transformers

    out.parent.mkdir(parents=True, exist_ok=True)
    config = getattr(transformers, kind)(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    draw(model, SEED)
    with tempfile.TemporaryDirectory(dir=out.parent) as made:
        model.save_pretrained(made)
        Path(made).rename(out)
        Path(made).mkdir()  # for its own removal
    return str(out)
