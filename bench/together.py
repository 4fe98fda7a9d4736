"""C5, C6: several tenants' training in one batch, beside peft's set_adapter loop, beside our own
engine used for one tenant at a time, and beside one tenant that has all the tokens."""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass

from foreign import warmed_rounds
from rows import make_row
from training import LEARNING_RATE, RANK, TOLERANCE, differences, foreign_of, limit_tokens_s
from verdict import ONE, SER
from worker import with_model

STEPS = 2  # for every tenant in one sample: a queue with work in it
# Sequences of each rank whose LoRA products cost what the same sequences cost with rank 16.
MIXED = {4: 4, 8: 2, 16: 1, 32: 1, 64: 1}


def merged(step):
    """All tenants' rows of this step, as one tenant's batch."""
    batches = step.values()
    return {
        "all": {
            field: [row for batch in batches for row in batch[field]] for field in ("ids", "labels")
        }
    }


def renamed(step, prefix):
    return {prefix + name: batch for name, batch in step.items()}


def tokens_of(steps):
    return sum(len(row) for step in steps for batch in step.values() for row in batch["ids"])


def dealt(batches, names):
    """Steps of {tenant: batch}: each tenant takes the next batch."""
    return [
        dict(zip(names, batches[start : start + len(names)], strict=True))
        for start in range(0, len(batches) - len(names) + 1, len(names))
    ]


class Contest:
    """Some ways to train the same tokens, each a function of a sample's steps."""

    def __init__(self, run, name, steps, rank=RANK):
        self.run, self.name, self.steps, self.rank = run, name, steps, rank
        self.losses = {}

    def measure(self, ways):
        """Rounds of {way: sample}, of which each takes the next STEPS steps."""

        def take(index):
            steps = self.steps[STEPS * index : STEPS * (index + 1)]
            round_ = {}
            for way, train in ways.items():
                sample = round_[way] = train(steps)
                sample["rate"] = tokens_of(steps) / sample["wall_s"]
                sample["steps"] = steps
                self.losses.setdefault(way, []).extend(sample.pop("losses"))
            return round_

        self.rounds, self.noisy = warmed_rounds(self.run, self.name, take)

    def curves(self, way):
        """{tenant: losses}, the tenants in their order."""
        first = self.losses[way][0]
        return [[step[name] for step in self.losses[way]] for name in first]

    def row(self, what, peer, tolerance=None):
        """ours against `peer`; with a tolerance, every tenant's losses are compared."""
        pairs = {"ours": "together", "peer": peer}
        used = [batch for r in self.rounds for s in r["together"]["steps"] for batch in s.values()]
        notes, valid = [], True
        if tolerance is not None:
            ours, theirs = self.curves("together"), self.curves(peer)
            worst = max(differences(a, b) for a, b in zip(ours, theirs, strict=True))
            valid = worst <= tolerance
            notes.append(f"{len(ours)} tenants' losses differ by at most {worst:.1e} (relative)")
        return make_row(
            self.name, what, peer,
            {name: [round_[way]["rate"] for round_ in self.rounds] for name, way in pairs.items()},
            limit_tokens_s(self.run, used, rank=self.rank), unit="tokens/s",
            noisy=self.noisy, valid=valid, notes=notes, foreign=foreign_of(self.rounds),
            **self.run.machine_fields(),
        )  # fmt: skip


def trainer(worker, together, change=lambda step: step):
    def train(steps):
        return worker.ask(
            "train_tenants", steps=[change(s) for s in steps], lr=LEARNING_RATE, together=together
        )

    return train


def ours_three_ways(run, stack, names, ranks, folder=None):
    """One engine: the tenants together, copies of them one after the other, one tenant for all."""
    worker = with_model(stack, run, "system_twinkle_batch")
    worker.ask("start_tenants", names=names, ranks=ranks, folder=folder)
    worker.ask("start_tenants", names=["alone-" + name for name in names], ranks=ranks)
    worker.ask("start_tenants", names=["all"], ranks=[max(ranks)])
    return {
        "together": trainer(worker, True),
        SER: trainer(worker, False, lambda step: renamed(step, "alone-")),
        ONE: trainer(worker, True, merged),
    }


def c5(run):
    samples = STEPS * (run.attempts + 1)
    names = [f"tenant-{i}" for i in range(4)]
    contest = Contest(run, "C5", dealt(run.inputs.mixed_batches(4 * samples, 2), names))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ways = ours_three_ways(run, stack, names, [RANK] * 4, folder)
        worker = with_model(stack, run, "system_peft_batch")
        peer = worker.ask("name")
        worker.ask("start_tenants", names=names, folder=folder)
        contest.measure(ways | {peer: trainer(worker, False)})
    what = "4 tenants x 2 sequences of GSM8K in one batch, rank 8"
    yield contest.row(what, peer, TOLERANCE["bf16"])
    yield contest.row(what, SER, 0.0)
    yield contest.row(what, ONE)

    yield from crowd(run, "C5", Crowd(8, 64, RANK))


@dataclass(frozen=True)
class Crowd:
    tenants: int
    tokens: int  # for each
    rank: int


def crowd(run, id_, of, model=""):
    """Rows of a crowd beside the same one tenant after the other, and one with all the tokens.

    model: whose it is, for the rows' text.
    """
    names = [f"tenant-{i}" for i in range(of.tenants)]
    count = of.tenants * STEPS * (run.attempts + 1)
    batches = run.inputs.full_batches(count, 1, of.tokens)
    contest = Contest(run, id_, dealt(batches, names), of.rank)
    with ExitStack() as stack:
        contest.measure(ours_three_ways(run, stack, names, [of.rank] * of.tenants))
    what = f"{of.tenants} tenants x {of.tokens} tokens in one batch, rank {of.rank}{model}"
    exact = run.options.get("deterministic", True)
    yield contest.row(what, SER, 0.0 if exact else TOLERANCE["bf16"])
    yield contest.row(what, ONE)


def c6(run):
    """Sequences of one length; a tenant of each rank beside tenants of rank 16 alone."""
    counts = list(MIXED.values())
    names = [f"rank-{rank}" for rank in MIXED]
    rows = iter(run.inputs.full_batches(STEPS * (run.attempts + 1) * sum(counts), 1, 128))
    steps = []
    for _ in range(STEPS * (run.attempts + 1)):
        mine = {name: [next(rows) for _ in range(n)] for name, n in zip(names, counts, strict=True)}
        steps.append(
            {
                name: {field: [b[field][0] for b in batches] for field in ("ids", "labels")}
                for name, batches in mine.items()
            }
        )
    contest = Contest(run, "C6", steps, rank=16)
    equal = "Twinkle, all of rank 16"
    with ExitStack() as stack:
        worker = with_model(stack, run, "system_twinkle_batch")
        worker.ask("start_tenants", names=names, ranks=list(MIXED))
        worker.ask("start_tenants", names=["same-" + name for name in names], ranks=[16] * 5)
        contest.measure(
            {
                "together": trainer(worker, True),
                equal: trainer(worker, True, lambda step: renamed(step, "same-")),
            }
        )
    ranks = ", ".join(map(str, MIXED))
    yield contest.row(f"tenants of rank {ranks} in one batch, equal LoRA products", equal)
