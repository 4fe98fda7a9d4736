"""The limits: what the machine measured, and how much of it a workload needs at least."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from foreign import take_rounds


@dataclass
class Machine:
    """Best clean medians of this run."""

    gemm_gflops: float  # bf16, the best of the measured shapes
    read_gb_s: float
    note: str


@dataclass
class Shape:
    """What the formulas need of a llama-like model with tied embeddings."""

    hidden: int
    inner: int
    kv_width: int
    layers: int
    vocab: int

    @classmethod
    def of(cls, model):
        config = json.loads((Path(model) / "config.json").read_text())
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        head = config.get("head_dim") or hidden // heads
        kv = head * config["num_key_value_heads"]
        return cls(
            hidden, config["intermediate_size"], kv, config["num_hidden_layers"],
            config["vocab_size"],
        )  # fmt: skip

    @property
    def linears(self):
        """(inputs, outputs) of every adapted linear of one layer."""
        h, i, kv = self.hidden, self.inner, self.kv_width
        return [(h, h), (h, kv), (h, kv), (h, h), (h, i), (h, i), (i, h)]

    @property
    def layer_weights(self):
        return self.layers * sum(a * b for a, b in self.linears)

    @property
    def head_weights(self):
        return self.vocab * self.hidden

    def adapter_weights(self, rank):
        return self.layers * rank * sum(a + b for a, b in self.linears)

    @property
    def bytes(self):
        return 2 * (self.layer_weights + self.head_weights)


def training_gflop(shape, rank, lengths, num_scored):
    """GFLOP of one step over sequences of these lengths.

    Frozen weights: 2 forward and 2 for the gradient of their input; adapters: 6; the head only
    where a label is scored; causal attention 2 * L * hidden forward per token, three times that
    with backward. rank None: all weights learn, 2 more for the gradient of each.
    """
    tokens = sum(lengths)
    each = 6 if rank is None else 4
    per_token = each * shape.layer_weights + (6 * shape.adapter_weights(rank) if rank else 0)
    attention = 6 * shape.hidden * shape.layers * sum(length * length for length in lengths)
    return (tokens * per_token + num_scored * each * shape.head_weights + attention) / 1e9


def training_memory_mib(shape, rank, tokens):
    """Weights in bf16, adapter with gradient and two moments in fp32, and what backward must see.

    Per token and layer, bf16: both residuals, both norms' outputs, q, k, v, attention's output,
    gate and up. No logits; the libraries' own memory is not counted.
    """
    activations = 2 * tokens * shape.layers * (
        6 * shape.hidden + 2 * shape.kv_width + 2 * shape.inner
    )  # fmt: skip
    return (shape.bytes + 16 * shape.adapter_weights(rank) + activations) / 2**20


def decoding_tokens_s(shape, machine, num_sequences):
    """The lower of reading every weight once per step and multiplying it by every sequence."""
    by_memory = num_sequences * machine.read_gb_s * 1e9 / shape.bytes
    return min(by_memory, machine.gemm_gflops * 1e9 / shape.bytes)


def prompt_tokens_s(shape, machine, length):
    """Products of every token with the layers' weights, of the last with the head; attention."""
    gflop = 2 * (length * shape.layer_weights + shape.head_weights)
    gflop += 2 * shape.hidden * shape.layers * length * length
    return machine.gemm_gflops * 1e9 * length / gflop


def measure(worker, wanted, attempts, on_round):
    def medians(call, field):
        rounds, noisy = take_rounds(
            lambda _: {call: worker.ask(call)}, wanted, attempts, on_round
        )  # fmt: skip
        values = [round_[call][field] for round_ in rounds]
        if isinstance(values[0], list):
            return [statistics.median(column) for column in zip(*values, strict=True)], noisy
        return statistics.median(values), noisy

    worker.ask("bandwidth")  # the first touches its pages
    rates, noisy_gemm = medians("gemm", "rates")
    read, noisy_read = medians("bandwidth", "rate")
    shapes = ", ".join(f"{rate:.0f}" for rate in rates)
    note = f"bf16 products {shapes} GFLOP/s (1024x576x1536, 2048 cubed), read {read:.1f} GB/s"
    if noisy_gemm or noisy_read:
        note += ", measured under foreign load"
    return Machine(max(rates), read, note)
