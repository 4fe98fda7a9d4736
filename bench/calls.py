"""D7: what a call to Ray's workers costs: through a proxy of ours beside a bare actor of the same
cluster, and a training batch beside the same in process."""

from contextlib import ExitStack

import training
from rows import make_row
from verdict import BARE_ACTOR, IN_PROCESS
from worker import Worker

from twinkle import NotAvailableError
from twinkle.remote.cluster import ray_package

CALLS, HANDED_OVER, MEGABYTES = 200, 20, 16
SYSTEM = "system_twinkle_ray"


def d7(run):
    try:
        ray_package()
    except NotAvailableError as error:
        print(f"D7 is skipped: {error}", flush=True)
        return
    batches = run.inputs.full_batches(run.rounds + 1, training.SIZE, training.LENGTH)
    with ExitStack() as stack:
        ours, alone = (stack.enter_context(Worker(SYSTEM, run.threads)) for _ in range(2))
        ours.ask("load", model=run.model, in_workers=True)
        alone.ask("load", model=run.model, in_workers=False)
        null, over, batch, curves = [], [], [], []
        for index in range(1 + run.rounds):  # the first warms up
            null.append(ours.ask("null_calls", count=CALLS))
            over.append(ours.ask("hand_over", count=HANDED_OVER, megabytes=MEGABYTES))
            told = {"ours": ours, "peer": alone}
            told = {name: w.ask("train", **batches[index]) for name, w in told.items()}
            batch.append({name: 1e3 * told[name]["wall_s"] for name in told})
            curves.append([told[name]["loss"] for name in told])
            run.progress("D7")(None)
    equal = all(a == b for a, b in curves)
    for what, peer, rounds, valid in (
        ("a call of a method that does nothing, waited for", BARE_ACTOR, null, True),
        (f"a lazy result of {MEGABYTES} MB, from one group to another", BARE_ACTOR, over, True),
        ("forward_backward of C1's batch, until its loss is known", IN_PROCESS, batch, equal),
    ):
        samples = {name: [round_[name] for round_ in rounds[1:]] for name in ("ours", "peer")}
        notes = [f"{len(curves)} losses have the same bits"] if peer == IN_PROCESS and equal else []
        yield make_row(
            "D7", f"Ray, groups of one worker: {what}", peer, samples, min(samples["peer"]),
            lower_is_better=True, unit="ms", noisy=False, valid=valid,
            notes=[*notes, "the limit is the peer's best"], **run.machine_fields(),
        )  # fmt: skip
