"""R2: how soon a sampler uses new weights, beside the way through a file."""

from rows import make_row
from worker import Worker

RANKS = 8, 16
GOAL_MS = 3.0
FLOOR_MS = 20.0


def r2(run):
    with Worker("system_twinkle_tenants", run.threads) as worker:
        worker.ask("load", model=run.model)
        for rank in RANKS[:1] if run.processes == 1 else RANKS:
            times = worker.ask("publish", count=3 * run.rounds, rank=rank)
            run.progress("R2")(None)
            worker.ask("forget")
            yield make_row(
                "R2", f"step to first token with the new weights, rank {rank}, beyond the token",
                "the same engine through a file",
                {"ours": times["at_once"], "peer": times["by_file"]}, GOAL_MS,
                lower_is_better=True, unit="ms", noisy=False, valid=True,
                notes=[f"the limit is the goal, at most {FLOOR_MS:.0f} ms must be"],
                **run.machine_fields(),
            )  # fmt: skip
