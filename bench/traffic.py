"""D1 and D3: the bytes that two ranks send each other, next to docs/parallel.md's formulas. Counts,
which are the same on every machine."""

import json
import subprocess

from rows import make_row
from service.client import program
from verdict import FORMULA

from twinkle import hub

RANKS = 2


def counted(run, id_):
    told = subprocess.run(
        [program("traffic_bench"), str(hub.get(run.model))],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    run.progress(id_)(None)
    return [line for line in map(json.loads, told.splitlines()) if line["id"] == id_]


def row(run, what, of_ranks, formula, within, notes=()):
    """A row. what: its id and text; of_ranks: bytes of each; within: the share of the formula by
    which they may differ."""
    sent = sum(of_ranks) / len(of_ranks)
    samples = {"ours": [sent / 1e6], "peer": [formula / 1e6]}
    return make_row(
        *what, FORMULA, samples, formula / 1e6, lower_is_better=True, unit="MB",
        noisy=False, valid=abs(sent - formula) <= within * formula, notes=list(notes),
        **run.machine_fields(),
    )  # fmt: skip


def d1(run):
    (told,) = counted(run, "D1")
    share = told["num_parameters"] * (RANKS - 1) / RANKS
    model = f"{told['num_parameters'] / 1e6:.1f} M weights in bf16, dp {RANKS}"
    grads = 4 * share + told["num_weights"] * (RANKS - 1)
    for what, sent, formula in (
        ("gradients of a batch of all weights", told["grads"], grads),
        ("new values of a step of all weights", told["values"], 2 * share),
    ):
        # A weight counts with what fills its last 64 bytes.
        yield row(run, ("D1", f"{what}, a rank: {model}"), sent, formula, 1e-3)


def d3(run):
    told = counted(run, "D3")
    sent = {each["gathered"]: each["sent"] for each in told}
    unit = told[0]["base_bytes"] * (RANKS - 1) / RANKS
    once = told[0]["once_bytes"] * (RANKS - 1) / RANKS
    assert sent["all"] == [0, 0], sent
    notes = ["with all gathered: 0"]
    what = f"a training pass's traffic of the base, a rank, fsdp {RANKS}, gathered_bytes 0"
    yield row(run, ("D3", what), sent["0"], 2 * unit - once, 1e-3, notes)
    # Pieces stay whole or not at all, so that a little less than half does.
    yield row(run, ("D3", "the same, half of P gathered"), sent["half"], unit, 0.05, notes)
