"""C1 to C4: LoRA training beside transformers + peft: speed, fp32, real texts, peak memory. F1: the
same of all weights."""

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from foreign import warmed_rounds
from limits import load_trial, training_gflop, training_memory_mib
from rows import make_row
from worker import Worker, with_model

RANK = 8
LEARNING_RATE = 1e-3
FULL_LEARNING_RATE = 2e-5
TOLERANCE = {"bf16": 2e-2, "fp32": 1e-4}  # for losses, relative
SIZE, LENGTH = 4, 256
SYSTEMS = {"ours": "system_twinkle", "peer": "system_peft"}
PEAK_STEPS = 2  # the second has all of the optimizer's state


@dataclass
class Question:
    id: str
    what: str
    precision: str = "bf16"
    all_weights: bool = False  # instead of an adapter
    rank: int = RANK
    repeats: int = 1  # steps with a batch in one sample
    lora: dict = field(default_factory=lambda: {"target_modules": "all-linear"})  # more of it


C1 = Question("C1", f"LoRA training, bf16, rank {RANK}, all linears, {SIZE} x {LENGTH} tokens")
C2 = Question("C2", "the same in fp32", "fp32")
C3 = Question("C3", "LoRA training on GSM8K, bf16, batches of 8, mixed lengths, real tokens")
C4 = Question("C4", "peak memory of C1")
F1 = [
    Question("F1", f"training of all weights, {of}, {SIZE} x {LENGTH} tokens", of, True)
    for of in TOLERANCE
]


def differences(left, right):
    """Largest relative difference of two loss curves."""
    return max(abs(a - b) / abs(b) for a, b in zip(left, right, strict=True))


def start(stack, run, system, adapter, question=C1):
    """The adapter is made by our own system, and read by the other."""
    worker = with_model(stack, run, system, precision=question.precision)
    if adapter is None:
        worker.ask("start_full_training")
    else:
        make = system.startswith("system_twinkle")
        more = {"lora": question.lora} if make else {}
        worker.ask("start_training", adapter=adapter, rank=question.rank, make=make, **more)
    return worker


def step(worker, batch, lr=LEARNING_RATE, repeats=1):
    return worker.ask("train", ids=batch["ids"], labels=batch["labels"], lr=lr, repeats=repeats)


def lengths(batch):
    return [len(row) for row in batch["ids"]]


def num_tokens(batch):
    return sum(lengths(batch))


def num_scored(batch):
    return sum(label != -100 for row in batch["labels"] for label in row)


def limit_tokens_s(run, batches, gemm_gflops=None, rank=RANK):
    """Tokens per second of these batches at the measured rate of matrix products. rank None: of
    all weights' training."""
    gflop = sum(
        training_gflop(run.shape, rank, lengths(batch), num_scored(batch)) for batch in batches
    )
    return sum(map(num_tokens, batches)) * (gemm_gflops or run.machine.gemm_gflops) / gflop


def speed(run, question, batches, gemm_gflops=None, prepare=lambda name, worker: None):
    """One row: both train the same batches from the same weights, one after the other."""
    curves = {"ours": [], "peer": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        adapter = None if question.all_weights else str(Path(folder) / "adapter")
        lr = FULL_LEARNING_RATE if question.all_weights else LEARNING_RATE
        asked = {
            name: start(stack, run, system, adapter, question) for name, system in SYSTEMS.items()
        }
        for name, worker in asked.items():
            prepare(name, worker)
        peer_name = asked["peer"].ask("name")

        def take(index):
            batch = batches[index]
            round_ = {
                name: step(worker, batch, lr, question.repeats) for name, worker in asked.items()
            }
            for name, sample in round_.items():
                curves[name].append(sample["loss"])
                sample["rate"] = question.repeats * num_tokens(batch) / sample["wall_s"]
                sample["batch"] = index
            return round_

        # The losses of the round that warms up count, its time does not.
        rounds, noisy = warmed_rounds(run, question.id, take)
        peaks = {name: [worker.ask("peak_mib")] for name, worker in asked.items()}
    difference = differences(curves["ours"], curves["peer"])
    used = [batches[round_["ours"]["batch"]] for round_ in rounds]
    return make_row(
        question.id, question.what, peer_name,
        {name: [round_[name]["rate"] for round_ in rounds] for name in SYSTEMS},
        limit_tokens_s(run, used, gemm_gflops, None if question.all_weights else question.rank),
        unit="tokens/s", noisy=noisy,
        valid=difference <= TOLERANCE[question.precision],
        notes=[f"{len(curves['ours'])} losses differ by at most {difference:.1e} (relative)"],
        losses=curves, foreign=foreign_of(rounds), peak_mib=peaks, **run.machine_fields(),
    )  # fmt: skip


def foreign_of(rounds):
    """Cores of foreign load per kept round, the worst of its samples."""
    return [round(max(s["foreign"] for s in round_.values()), 3) for round_ in rounds]


def c1(run):
    yield speed(run, C1, run.inputs.full_batches(run.attempts + 1, SIZE, LENGTH))


def fp32_gflops(run):
    with Worker("system_limits", run.threads) as worker:
        load_trial(worker, run)
        return statistics.median(max(worker.ask("gemm_fp32")["rates"]) for _ in range(run.rounds))


def c2(run):
    batches = run.inputs.full_batches(run.attempts + 1, SIZE, LENGTH)
    yield speed(run, C2, batches, fp32_gflops(run))


def f1(run):
    """Both step float32 weights."""
    batches = run.inputs.full_batches(run.attempts + 1, SIZE, LENGTH)
    for question in F1:
        yield speed(
            run, question, batches, fp32_gflops(run) if question.precision == "fp32" else None
        )


def c3(run):
    """Speed, and the peaks of the same two processes over all their steps."""
    batches = run.inputs.mixed_batches(run.attempts + 1, 8)
    row = speed(run, C3, batches)
    yield row
    yield peak_of(run, row, batches, "peak memory of the same")


def peak_of(run, row, batches, what):
    """Figures of the same two processes over all their steps."""
    most = max(num_tokens(batch) for batch in batches[: len(row["losses"]["ours"])])
    return make_row(
        row["id"], what, row["peer_name"], row["peak_mib"],
        training_memory_mib(run.shape, RANK, most), lower_is_better=True, unit="MiB", noisy=False,
        valid=row["valid"], notes=[f"at most {most} tokens a batch"], **run.machine_fields(),
    )  # fmt: skip


def c4(run):
    batches = run.inputs.full_batches(PEAK_STEPS, SIZE, LENGTH)
    yield peak(run, C4, batches, training_memory_mib(run.shape, RANK, SIZE * LENGTH))


def peak(run, question, batches, limit, prepare=lambda name, worker: None):
    """Every sample is a process of its own, from its start to the last step's end."""
    peaks, curves = {"ours": [], "peer": []}, {}
    done = run.progress(question.id)
    with tempfile.TemporaryDirectory() as folder:
        for index in range(run.processes):
            adapter = str(Path(folder) / f"adapter{index}")
            for name, system in SYSTEMS.items():
                with ExitStack() as stack:
                    worker = start(stack, run, system, adapter, question)
                    prepare(name, worker)
                    curves[name] = [step(worker, batch)["loss"] for batch in batches]
                    peaks[name].append(worker.ask("peak_mib"))
                    peer_name = worker.ask("name") if name == "peer" else None
            done(None)
    difference = differences(curves["ours"], curves["peer"])
    return make_row(
        question.id, question.what, peer_name, peaks, limit, lower_is_better=True, unit="MiB",
        noisy=False, valid=difference <= TOLERANCE["bf16"],
        notes=[f"losses differ by at most {difference:.1e} (relative)"],
        **run.machine_fields(),
    )  # fmt: skip
