"""K2: how long a Save keeps the engine's others waiting, and until it is durable."""

from rows import make_row
from verdict import DISK, MEMCPY
from worker import Worker

RANK = 16
GOAL_MS, FLOOR_MS = 3.0, 10.0  # for 59 MB


def k2(run):
    with Worker("system_twinkle_tenants", run.threads) as worker:
        worker.ask("load", model=run.model)
        seen = worker.ask("saves", count=3 * run.rounds, rank=RANK)
    run.progress("K2")(None)
    of = f"an adapter of rank {RANK} with Adam, {seen['bytes'] / 1e6:.0f} MB"
    same = {
        "lower_is_better": True,
        "unit": "ms",
        "noisy": False,
        "valid": True,
        **run.machine_fields(),
    }
    yield make_row(
        "K2", f"stall of another tenant while a save begins: {of}", MEMCPY,
        {"ours": seen["stall"], "peer": seen["memcpy"]}, GOAL_MS,
        notes=[f"the limit is the goal, at most {FLOOR_MS:.0f} ms must be"], **same,
    )  # fmt: skip
    disk = min(seen["disk"])
    yield make_row(
        "K2", f"until a save is durable: {of}", DISK,
        {"ours": seen["durable"], "peer": seen["disk"]}, disk,
        notes=["the limit is the peer's best"], **same,
    )  # fmt: skip
