"""G1 to G11, each a function of a run whose model is the shape that PLAN names: training and
decoding on one GPU. Where the work is that of a C row, its loop is that row's."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import adapters
import decoding
import prompts
import together
import training
import verdict
from foreign import in_turn, warmed_rounds
from limits import checkpointed_memory_mib, throughput_tokens_s
from rows import make_row
from training import Question
from worker import Worker, with_model

FROZEN = "Twinkle, the frozen base"
CALM = 128  # requests by which G9 sees how many it can ask


def aims_noted(row):
    """The row, with what it must have of its limit among its notes."""
    floor, goal = verdict.shares_of(row)
    notes = [] if floor is None else [f"{floor:.0%} of the limit must be"]
    notes += [] if goal is None else [f"{goal:.0%} of the limit are wanted"]
    return row | {"notes": row["notes"] + notes}


def training_of(id_, repeats):
    """G1 to G3: LoRA training beside transformers + peft; repeats: share of the run's."""

    def ask(run):
        size = run.sizes
        what = f"LoRA training, bf16, rank {size.rank}, 1 x {size.length} tokens{run.of}"
        steps = max(1, round(repeats * size.repeats))
        question = Question(id_, what, rank=size.rank, repeats=steps)
        batches = run.inputs.full_batches(run.attempts + 1, 1, size.length)
        row = training.speed(run, question, batches)
        yield aims_noted(row | {"notes": row["notes"] + run.utilization(row)})

    return ask


def g4(run):
    """Layers of both sides are computed twice."""
    run = run.alone(activation_bytes=1)
    long, rank = run.sizes.long, run.sizes.rank
    what = f"peak memory of LoRA training, layers computed twice, 1 x {long} tokens{run.of}"
    batches = run.inputs.full_batches(training.PEAK_STEPS, 1, long)

    def prepare(name, worker):
        if name == "peer":
            worker.ask("checkpoint")

    limit = checkpointed_memory_mib(run.shape, rank, long)
    yield training.peak(run, Question("G4", what, rank=rank), batches, limit, prepare)


def g5(run):
    """Ours is a whole model whose one layer is next to nothing; the products are the head's."""
    rows, shape = run.sizes.long, run.shape
    batches = run.inputs.full_batches(run.attempts + 1, 1, rows)
    tflop = 4 * rows * shape.head_weights / 1e12
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        question = Question("G5", "", rank=1)
        ours = training.start(stack, run, "system_twinkle", str(Path(folder) / "adapter"), question)
        peer = stack.enter_context(Worker("gpu.system_head", run.threads))
        peer.ask("load", width=shape.hidden, vocab=shape.vocab, device=run.device)
        peer_name = peer.ask("name")

        def sample_of(name, index):
            if name == "ours":
                return training.step(ours, batches[index])
            return peer.ask("train", labels=batches[index]["ids"][0])

        rounds, rates, noisy = in_turn(run, "G5", ("ours", "peer"), sample_of, tflop)
    what = f"head and cross entropy, forward and backward, {rows} rows, {shape.vocab} tokens"
    what += run.mode
    yield aims_noted(
        make_row(
            "G5", what, peer_name, rates, run.machine.gemm_gflops / 1e3, unit="TFLOP/s",
            noisy=noisy, valid=True, notes=[f"{shape.hidden} wide, frozen"],
            foreign=training.foreign_of(rounds), **run.machine_fields(),
        )
    )  # fmt: skip


def g6(run):
    size = run.sizes
    crowd = together.Crowd(size.tenants, size.tenant_tokens, size.rank)
    yield from together.crowd(run, "G6", crowd, run.of)


def g7(run):
    """The base's own forward and backward: an adapter of rank 1 in the first layer alone, so that
    the gradient runs down to it."""
    size = run.sizes
    count = together.STEPS * (run.attempts + 1)
    steps = together.dealt(run.inputs.full_batches(count, 1, size.length), ["lora"])
    contest = together.Contest(run, "G7", steps, rank=size.rank)
    with ExitStack() as stack:
        worker = with_model(stack, run, "system_twinkle_batch")
        worker.ask("start_tenants", names=["lora"], ranks=[size.rank])
        first = r".*\.layers\.0\.self_attn\.q_proj"
        worker.ask("start_tenants", names=["base-lora"], ranks=[1], targets=first)
        contest.measure(
            {
                "together": together.trainer(worker, True),
                FROZEN: together.trainer(
                    worker, True, lambda step: together.renamed(step, "base-")
                ),
            }
        )
    yield contest.row(
        f"LoRA training, rank {size.rank}, beside none, 1 x {size.length} tokens{run.of}", FROZEN
    )


def g8(run):
    with decoding.started(run) as workers:
        yield from map(aims_noted, decoding.rows_of(run, "G8", 1, workers, run.of))


def g9(run):
    """The peer takes one padded batch. Of ours there are as many requests as the time allows."""
    run, size = run.within(2), run.sizes
    texts, counts = run.inputs.requests(size.requests, size.longest)

    def throughput(worker, number):
        return worker.ask("throughput", prompts=texts[:number], counts=counts[:number])

    with decoding.started(run) as workers:
        for worker in workers.values():
            worker.ask("start_decoding", num_sequences=size.at_a_time)
        ours, peer = workers["system_twinkle"], workers["system_peft"]
        few = min(CALM, size.requests)
        throughput(ours, few)  # warms up
        calm = throughput(ours, few)
        fit = int(run.patience.seconds / 2 / calm["wall_s"] * few)
        number = min(size.requests, max(fit, few))

        def take(index):
            return {
                "ours": throughput(ours, number if index else few),
                "peer": throughput(peer, size.peer_requests if index else 2),
            }

        rounds, noisy = warmed_rounds(run, "G9", take)
    lengths = list(map(len, texts[:number]))
    limit = throughput_tokens_s(
        run.shape, run.machine, lengths, counts[:number], min(size.at_a_time, number)
    )
    tokens = sum(lengths), sum(counts[:number])
    notes = [
        f"{tokens[0]} tokens of prompts, {tokens[1]} of replies, which count; drawn with "
        f"seed {run.seed}; the peer takes {size.peer_requests} of them",
    ]
    if number < size.requests:
        notes.append(f"not {size.requests}, for want of time")
    rates = {
        name: [r[name]["tokens"] / r[name]["wall_s"] for r in rounds] for name in ("ours", "peer")
    }
    yield aims_noted(
        make_row(
            "G9", f"{number} requests at once, bf16{run.of}", run.peer_names["system_peft"],
            rates, limit, unit="tokens/s", noisy=noisy, valid=True, notes=notes,
            foreign=training.foreign_of(rounds), **run.machine_fields(),
        )
    )  # fmt: skip


def g10(run):
    size = run.sizes
    for count in size.adapters:
        what = (
            f"decoding, bf16, {size.batch} sequences behind {size.context} tokens, "
            f"{count} adapters of rank {size.rank}{run.of}"
        )
        yield adapters.measured(
            run, adapters.Load("G10", what, size.batch, count, size.rank, size.context)
        )


def g11(run):
    with decoding.started(run) as workers:
        for worker in workers.values():
            worker.ask("start_decoding", num_sequences=1)
        long = run.sizes.long
        yield from map(aims_noted, prompts.rows_of(run, "G11", long, workers, run.of))


# By shape, since its model is loaded once for all of them: G4, whose processes are its own, last.
PLAN = {
    "head": [("G5", g5)],
    "135M": [("G3", training_of("G3", 1))],
    "0.6B": [("G3", training_of("G3", 1)), ("G8", g8)],
    "4B": [
        ("G1", training_of("G1", 1 / 5)), ("G6", g6), ("G7", g7), ("G8", g8), ("G10", g10),
        ("G11", g11),
    ],
    "8B": [("G2", training_of("G2", 1 / 10)), ("G8", g8), ("G9", g9), ("G4", g4)],
}  # fmt: skip
