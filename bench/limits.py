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
    """The sizes of a llama-like model that the formulas need."""

    hidden: int
    inner: int
    kv_width: int
    layers: int
    vocab: int
    q_width: int | None = None  # all query heads together; None: `hidden`
    tied: bool = True  # the head is the embedding

    @classmethod
    def of(cls, model):
        config = json.loads((Path(model) / "config.json").read_text())
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        head = config.get("head_dim") or hidden // heads
        kv = head * config["num_key_value_heads"]
        return cls(
            hidden, config["intermediate_size"], kv, config["num_hidden_layers"],
            config["vocab_size"], head * heads, config.get("tie_word_embeddings", True),
        )  # fmt: skip

    @property
    def linears(self):
        """(inputs, outputs) of every adapted linear of one layer."""
        h, q, i, kv = self.hidden, self.attention, self.inner, self.kv_width
        return [(h, q), (h, kv), (h, kv), (q, h), (h, i), (h, i), (i, h)]

    @property
    def attention(self):
        return self.q_width or self.hidden

    @property
    def layer_weights(self):
        return self.layers * sum(a * b for a, b in self.linears)

    @property
    def head_weights(self):
        return self.vocab * self.hidden

    def adapter_weights(self, rank):
        return self.layers * rank * sum(a + b for a, b in self.linears)

    @property
    def attention_layers(self):
        return self.layers

    @property
    def recurrence(self):
        """FLOP of a token's passes through states, forward."""
        return 0

    def adapter_products(self, rank):
        """Weights of the adapters that a token is multiplied with."""
        return self.adapter_weights(rank)

    @property
    def kept(self):
        """Numbers that backward must see of a token: both residuals, both norms' outputs, q, k, v,
        attention's output, gate and up."""
        return self.layers * (
            4 * self.hidden + 2 * self.attention + 2 * self.kv_width + 2 * self.inner
        )

    @property
    def bytes(self):
        """Bytes of the weights that a step of decoding reads, in bf16."""
        return 2 * (self.layer_weights + self.head_weights)

    def step_bytes(self, num_sequences):
        """Bytes that a step of decoding so many sequences reads besides their keys and values."""
        return self.bytes

    @property
    def resident_bytes(self):
        """Bytes of all weights: an embedding that is not the head lies beside it."""
        return self.bytes + (0 if self.tied else 2 * self.head_weights)

    @property
    def kv_bytes(self):
        """Bytes of one token's keys and values, in bf16."""
        return 4 * self.layers * self.kv_width


def training_gflop(shape, rank, lengths, num_scored):
    """GFLOP of one step over sequences of these lengths.

    Frozen weights: 2 forward and 2 for the gradient of their input; adapters: 6; the head only
    where a label is scored; causal attention 2 * L * hidden forward per token, and a recurrence's
    products, three times that with backward. rank None: all weights learn, 2 more for the gradient
    of each.
    """
    tokens = sum(lengths)
    each = 6 if rank is None else 4
    per_token = each * shape.layer_weights + (6 * shape.adapter_products(rank) if rank else 0)
    per_token += 3 * shape.recurrence
    attention = 6 * shape.attention * shape.attention_layers
    attention *= sum(length * length for length in lengths)
    return (tokens * per_token + num_scored * each * shape.head_weights + attention) / 1e9


def training_memory_mib(shape, rank, tokens):
    """Weights in bf16, adapter with gradient and two moments in fp32, and what backward must see,
    in bf16. No logits; the libraries' own memory is not counted."""
    activations = 2 * tokens * shape.kept
    return (shape.resident_bytes + 16 * shape.adapter_weights(rank) + activations) / 2**20


def checkpointed_memory_mib(shape, rank, tokens):
    """The same where every layer is computed again: of activations the layers' inputs alone."""
    activations = 2 * tokens * shape.layers * shape.hidden
    return (shape.resident_bytes + 16 * shape.adapter_weights(rank) + activations) / 2**20


def decoding_tokens_s(shape, machine, num_sequences, more_bytes=0):
    """The lower of reading every weight, and more_bytes, once per step and multiplying every weight
    by every sequence."""
    read = shape.step_bytes(num_sequences) + more_bytes
    by_memory = num_sequences * machine.read_gb_s * 1e9 / read
    return min(by_memory, machine.gemm_gflops * 1e9 / shape.bytes)


def prompt_tokens_s(shape, machine, length):
    """Products of every token with the layers' weights, of the last with the head; attention."""
    gflop = 2 * (length * shape.layer_weights + shape.head_weights)
    gflop += 2 * shape.attention * shape.layers * length * length
    return machine.gemm_gflops * 1e9 * length / gflop


def throughput_tokens_s(shape, machine, lengths, counts, at_a_time):
    """New tokens per second, counts[i] behind a prompt of lengths[i] tokens: the products of all
    tokens, or the reading of the weights once for `at_a_time` new ones and of every new token's
    context, whichever takes longer."""
    tokens, new = sum(lengths) + sum(counts), sum(counts)
    gflop = 2 * (tokens * shape.layer_weights + new * shape.head_weights) / 1e9
    contexts = sum(n * length + n * n / 2 for length, n in zip(lengths, counts, strict=True))
    gbytes = (shape.bytes * new / at_a_time + shape.kv_bytes * contexts) / 1e9
    return new / max(gflop / machine.gemm_gflops, gbytes / machine.read_gb_s)


@dataclass(frozen=True)
class Trial:
    """The machine's limits, for measure()."""

    shapes: tuple = ((1024, 576, 1536), (2048, 2048, 2048))  # products: the model's own; large
    read_mib: int = 1024


TRIAL = Trial()


def load_trial(worker, run, trial=TRIAL):
    worker.ask("load", device=run.device, shapes=trial.shapes, read_mib=trial.read_mib)


def measure(worker, run, trial=TRIAL):
    def medians(call, field):
        rounds, noisy = take_rounds(
            lambda _: {call: worker.ask(call)}, run.rounds, run.attempts,
            run.progress("limits"), run.patience,
        )  # fmt: skip
        values = [round_[call][field] for round_ in rounds]
        if isinstance(values[0], list):
            return [statistics.median(column) for column in zip(*values, strict=True)], noisy
        return statistics.median(values), noisy

    load_trial(worker, run, trial)
    worker.ask("bandwidth")  # the first touches its pages
    rates, noisy_gemm = medians("gemm", "rates")
    read, noisy_read = medians("bandwidth", "rate")
    shapes = ", ".join(f"{rate:.0f}" for rate in rates)
    of = ", ".join(written(shape) for shape in trial.shapes)
    note = f"bf16 products {shapes} GFLOP/s ({of}), read {read:.1f} GB/s"
    if noisy_gemm or noisy_read:
        note += ", measured under foreign load"
    return Machine(max(rates), read, note)


def written(shape):
    """1024x576x1536, or 2048 cubed."""
    return f"{shape[0]} cubed" if len(set(shape)) == 1 else "x".join(map(str, shape))
