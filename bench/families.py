"""F2, F3: LoRA training of a model with routed experts and of one with the gated delta rule; F4:
decoding of both; beside transformers (+ peft), its experts in the way that is fastest here."""

import copy
import tempfile
from contextlib import ExitStack
from pathlib import Path

import drawn
import training
from decoding import rows_of, started
from rows import make_row
from training import Question, peak_of, speed, start, step
from worker import with_model

# Training by "batched_mm" copies three matrices for every routed row: 36 GB of F2's.
TRAINING_WAYS, DECODING_WAYS = ("eager", "grouped_mm"), ("eager", "batched_mm", "grouped_mm")
TOKENS = f"{training.SIZE} x {training.LENGTH} tokens"
MODEL = {
    "qwen3_moe": "qwen3_moe of 12 layers, width 512, 32 experts, 4 chosen",
    "qwen3_5": "qwen3_5 of 12 layers, width 512",
}
STACKS = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
SEQUENCES = (1, 8)


class Folded:
    """The run's texts in a vocabulary that is smaller: what its size leaves of their tokens."""

    def __init__(self, inputs, vocabulary):
        self._inputs, self._vocabulary = inputs, vocabulary

    def full_batches(self, count, size, length):
        return [
            {name: [self._of(row) for row in batch[name]] for name in batch}
            for batch in self._inputs.full_batches(count, size, length)
        ]

    def prompts(self, count):
        return [self._of(prompt) for prompt in self._inputs.prompts(count)]

    def _of(self, row):
        return [token if token < 0 else token % self._vocabulary for token in row]


def of_model(run, name, adapted=None):
    """The run with this model in place of its own."""
    from twinkle.hub.models import cache_directory

    other = copy.copy(run)
    other.model = drawn.written(cache_directory() / "drawn", name)
    other.shape = drawn.shape_of(drawn.MODELS[name][1], adapted)
    other.inputs = Folded(run.inputs, other.shape.vocab)
    other.beside_llama = False
    return other


def fastest(ways, sample):
    """(the way that takes least, its note); sample(way): seconds."""
    seconds = {way: sample(way) for way in ways}
    best = min(seconds, key=seconds.get)
    others = ", ".join(
        f"{way} takes {seconds[way] / seconds[best]:.1f} times as long"
        for way in ways
        if way != best
    )
    return best, f"its experts by {best} ({others})"


def fastest_training(run, question, batch):
    """In processes of their own: what they do does not count."""
    with tempfile.TemporaryDirectory() as folder:
        adapter = str(Path(folder) / "adapter")
        with ExitStack() as stack:
            start(stack, run, "system_twinkle", adapter, question)
        with ExitStack() as stack:
            peer = start(stack, run, "system_peft", adapter, question)

            def sample(way):
                peer.ask("use_experts", implementation=way)
                return min(step(peer, batch)["wall_s"] for _ in range(2))

            return fastest(TRAINING_WAYS, sample)


def fastest_decoding(run, prompts):
    with ExitStack() as stack:
        peer = with_model(stack, run, "system_peft")
        peer.ask("start_decoding", num_sequences=len(prompts))

        def sample(way):
            peer.ask("decode_experts_by", implementation=way)
            return min(
                peer.ask("decode", prompts=prompts, num_tokens=8)["wall_s"] for _ in range(2)
            )

        return fastest(DECODING_WAYS, sample)


def training_rows(run, question):
    batches = run.inputs.full_batches(run.attempts + 1, training.SIZE, training.LENGTH)
    way, notes = None, []
    if run.shape.routed:
        way, note = fastest_training(run, question, batches[0])
        notes = [note]

    def prepare(name, worker):
        if name == "peer" and way:
            worker.ask("use_experts", implementation=way)

    row = speed(run, question, batches, prepare=prepare)
    yield row | {"notes": row["notes"] + notes}
    yield peak_of(run, row, batches, f"peak memory of {question.what.removeprefix('LoRA ')}")


def f2(run):
    for of, names, lora in (
        ("attention", drawn.ATTENTION, {}),
        ("attention and experts", drawn.ATTENTION + drawn.EXPERTS, STACKS),
    ):
        what = f"LoRA training, bf16, rank {training.RANK}, {of}, {TOKENS}, "
        what += MODEL["qwen3_moe"]
        attention = {"target_modules": list(drawn.ATTENTION)}
        question = Question("F2", what, lora=attention | lora)
        yield from training_rows(of_model(run, "qwen3_moe", names), question)


def f3(run):
    what = f"LoRA training, bf16, rank {training.RANK}, all linears, {TOKENS}, {MODEL['qwen3_5']}"
    yield from training_rows(of_model(run, "qwen3_5"), Question("F3", what))


def f4(run):
    for name, of in MODEL.items():
        yield from decoding_rows(of_model(run, name), of)


def decoding_rows(run, of):
    """One row for each number of sequences; then the peaks of the processes that did both."""
    ways = {}
    if run.shape.routed:
        ways = {n: fastest_decoding(run, run.inputs.prompts(n)) for n in SEQUENCES}
    with started(run) as workers:
        for n in SEQUENCES:
            notes = []
            if n in ways:
                workers["system_peft"].ask("decode_experts_by", implementation=ways[n][0])
                notes = [ways[n][1]]
            for row in rows_of(run, "F4", n, workers, f", {of}"):
                yield row | {"notes": row["notes"] + notes}
        peaks = {
            side: [workers[system].ask("peak_mib")] for side, system in training.SYSTEMS.items()
        }
    yield make_row(
        "F4", f"peak memory of both, {of}", row["peer_name"], peaks,
        run.shape.resident_bytes / 2**20, lower_is_better=True, unit="MiB", noisy=False, valid=True,
        notes=["the limit is the weights"], **run.machine_fields(),
    )  # fmt: skip
