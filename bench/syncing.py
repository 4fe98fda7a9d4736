"""R4: weights from a model's process to a sampler's, compared with sending as many bytes."""

from concurrent.futures import ThreadPoolExecutor

from rows import make_row
from verdict import SEND_RECV
from worker import Worker


def both(workers, call, *of_each, **same):
    """Both workers' answers: they talk to each other meanwhile. of_each: more arguments of each."""
    with ThreadPoolExecutor(2) as threads:
        more = of_each or ({}, {})
        futures = [
            threads.submit(worker.ask, call, **same, **own)
            for worker, own in zip(workers, more, strict=True)
        ]
        return [future.result() for future in futures]


def r4(run):
    threads = max(1, run.threads // 2)
    with Worker("system_sync", threads) as model, Worker("system_sync", threads) as sampler:
        workers = model, sampler
        both(workers, "load", {"frozen": False}, {"frozen": True}, model=run.model)
        address = model.ask("prepare")
        both(workers, "meet", {"rank": 0}, {"rank": 1}, address=address)
        ours, peer, num_bytes = [], [], 0
        for round_ in range(1 + 3 * run.rounds):  # the first warms up
            times = both(workers, "sync")
            num_bytes = times[0]["num_bytes"]
            raw = both(workers, "raw", num_bytes=num_bytes)
            if round_ > 0:
                ours.append(max(t["ms"] for t in times))
                peer.append(max(raw))
            run.progress("R4")(None)
    yield make_row(
        "R4", f"sync of all weights into another process, bf16, {num_bytes / 1e6:.0f} MB",
        SEND_RECV, {"ours": ours, "peer": peer}, min(peer),
        lower_is_better=True, unit="ms", noisy=False, valid=True,
        notes=["the limit is the peer's best"], **run.machine_fields(),
    )  # fmt: skip
