"""C12: resident tenants: what each takes in memory, and how long it takes to create one.

One process of each system: memory is the mean of its tenants, the time the median.
"""

from contextlib import ExitStack
from dataclasses import dataclass

from rows import make_row
from worker import Worker

PEER_TENANTS = 8  # enough to take the mean; the peer's adapters do not share anything either
GOAL_MS = 5.0  # for creating a tenant


@dataclass
class Crowd:
    tenants: int
    rank: int


FLOOR, GOAL = Crowd(64, 16), Crowd(256, 8)


def resident_mib(shape, rank):
    """A tenant at rest must keep this: weights and Adam's two moments, in fp32."""
    return 12 * shape.adapter_weights(rank) / 2**20


def grow(run, system, crowd, count):
    """A process of its own: {"each_mib", "create_ms"} of `count` tenants, and the system's name."""
    with ExitStack() as stack:
        worker = stack.enter_context(Worker(system, run.threads))
        worker.ask("load", model=run.model)
        return worker.ask("grow", count=count, rank=crowd.rank), worker.ask("name")


def c12(run):
    done = run.progress("C12")
    for crowd in (FLOOR, GOAL):
        tenants = crowd.tenants // (16 if run.processes == 1 else 1)  # a quick run takes few
        ours, _ = grow(run, "system_twinkle_tenants", crowd, tenants)
        peer, peer_name = grow(run, "system_peft_tenants", crowd, PEER_TENANTS)
        done(None)
        what = f"{tenants} tenants of rank {crowd.rank}, each after a step"
        yield make_row(
            "C12", f"{what}: memory of one", peer_name,
            {"ours": [ours["each_mib"]], "peer": [peer["each_mib"]]},
            resident_mib(run.shape, crowd.rank), lower_is_better=True, unit="MiB",
            noisy=False, valid=True, notes=[f"the peer holds {PEER_TENANTS}"],
            **run.machine_fields(),
        )  # fmt: skip
        yield make_row(
            "C12", f"{what}: creating one", peer_name,
            {"ours": ours["create_ms"], "peer": peer["create_ms"]}, GOAL_MS,
            lower_is_better=True, unit="ms", noisy=False, valid=True,
            notes=["the limit is the goal"],
            **run.machine_fields(),
        )  # fmt: skip
