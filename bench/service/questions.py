"""S1, S2, S3: the service's own time, over a model that computes nothing; its journal is on.

A row's limit is its goal, and its floor a share of that (verdict.py). Both servers are asked in
turn. Other programs' load is not told from the servers' own, so no round is dropped for it.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from rows import make_row
from service import stub
from service.client import Client, Server, forward_backward, poll, program, request_bytes
from verdict import DISK, STUB

CONNECTIONS = 16
LARGE = 1024, 1024  # data, and tokens of each: 4 MiB of log-probabilities
P50_MS, P99_MS, PER_SECOND, LARGE_MS = 0.3, 2.0, 50_000, 6.0  # goals


@contextmanager
def servers():
    """Ours, and one that does nothing."""
    with (
        tempfile.TemporaryDirectory() as state,
        Server(program("null_service"), state, "process") as ours,
        Server(sys.executable, stub.__file__) as peer,
    ):
        yield {"ours": ours, "peer": peer}


def share(values, part):
    """The value that `part` of them do not exceed."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def in_turn(run, label, ask):
    """{server: [ask(server) of each round]}; a round before them warms up."""
    done = run.progress(label)
    rounds = []
    for _ in range(run.rounds + 1):
        rounds.append({name: ask(name) for name in ("ours", "peer")})
        done(None)
    return {name: [one[name] for one in rounds[1:]] for name in ("ours", "peer")}


def row(run, id_, what, samples, limit, unit):
    notes = ["the limit is the goal", f"load average {os.getloadavg()[0]:.1f}"]
    return make_row(
        id_, what, STUB, samples, limit, lower_is_better=unit == "ms", unit=unit, noisy=False,
        valid=True, notes=notes, **run.machine_fields(),
    )  # fmt: skip


def is_quick(run):
    return run.processes == 1


class Runs:
    """A client of each server, with a run and the number of its next request."""

    def __init__(self, at):
        self.clients = {name: Client(server.port) for name, server in at.items()}
        self.runs = {name: client.new_run() for name, client in self.clients.items()}
        self.next = dict.fromkeys(at, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for client in self.clients.values():
            client.__exit__()

    def request(self, name, **size):
        self.next[name] += 1
        return forward_backward(self.runs[name], self.next[name] - 1, **size)

    def submit(self, name, request):
        """The request_id of a forward_backward."""
        return self.clients[name].sent(request)

    def round_trips_ms(self, name, count):
        """From a small forward_backward that is sent to its result."""
        out = []
        for _ in range(count):
            request = self.request(name)
            start = time.perf_counter()
            self.clients[name].result(self.submit(name, request))
            out.append(1e3 * (time.perf_counter() - start))
        return out


def s1(run):
    count = 100 if is_quick(run) else 2000
    with servers() as at, Runs(at) as runs:
        times = in_turn(run, "S1", lambda name: runs.round_trips_ms(name, count))
    for part, limit in ((0.5, P50_MS), (0.99, P99_MS)):
        samples = {name: [share(one, part) for one in all_] for name, all_ in times.items()}
        what = f"submit to result, p{100 * part:.0f}, a client of plain sockets"
        yield row(run, "S1", what, samples, limit, "ms")
    yield from s1_on_the_disk(run)


def synced_ms(file, num_bytes, count):
    """Times of single writes with fdatasync, of so many bytes each."""
    out = []
    for _ in range(count):
        start = time.perf_counter()
        os.write(file.fileno(), bytes(num_bytes))
        os.fdatasync(file.fileno())
        out.append(1e3 * (time.perf_counter() - start))
    return out


def s1_on_the_disk(run):
    """S1 where an acknowledgement outlives a loss of power, beside the disk's own time."""
    count = 20 if is_quick(run) else 200
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(program("null_service"), f"{folder}/state", "disk") as server,
        Runs({"ours": server}) as runs,
        (Path(folder) / "beside").open("wb", buffering=0) as file,
    ):
        num_bytes = len(forward_backward(runs.runs["ours"], 1))
        ask = {
            "ours": lambda: runs.round_trips_ms("ours", count),
            "peer": lambda: synced_ms(file, num_bytes, count),
        }
        times = in_turn(run, "S1 disk", lambda name: ask[name]())
    for part in (0.5, 0.99):
        samples = {name: [share(one, part) for one in all_] for name, all_ in times.items()}
        best = min(samples["peer"])
        what = f"submit to result with durability disk, p{100 * part:.0f}"
        notes = ["the limit is the peer's best", f"load average {os.getloadavg()[0]:.1f}"]
        yield make_row(
            "S1", what, DISK, samples, best, lower_is_better=True, unit="ms", noisy=False,
            valid=True, notes=notes, **run.machine_fields(),
        )  # fmt: skip


def rate(port, seconds, request):
    """Requests per second that http_rate gets answered."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(request)
        command = [program("http_rate"), str(port), str(CONNECTIONS), str(seconds), file.name]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def s2(run):
    seconds = 0.2 if is_quick(run) else 2
    with servers() as at, Runs(at) as runs:
        settled = {name: runs.submit(name, runs.request(name)) for name in at}
        for name, promise in settled.items():
            runs.clients[name].result(promise)
        asked = {
            "healthz": dict.fromkeys(at, request_bytes("/api/v1/healthz")),
            "results that are there": {name: poll(id_) for name, id_ in settled.items()},
        }
        for what, requests in asked.items():
            samples = in_turn(run, "S2", lambda n, r=requests: rate(at[n].port, seconds, r[n]))
            told = f"{what}, {CONNECTIONS} connections"
            yield row(run, "S2", told, samples, PER_SECOND, "requests/s")


def s3(run):
    num_data, num_tokens = (16, 1024) if is_quick(run) else LARGE
    count = 5 if is_quick(run) else 100
    with servers() as at, Runs(at) as runs:
        request = runs.request("ours", num_data=num_data, num_tokens=num_tokens)
        promises = {
            "ours": runs.submit("ours", request),
            "peer": f"passed:{num_data * num_tokens}",  # how many, as the stub reads it
        }

        def p99_ms(name):
            request, times = poll(promises[name]), []
            for _ in range(count):
                start = time.perf_counter()
                body = runs.clients[name].ask(request)
                times.append(1e3 * (time.perf_counter() - start))
            if len(body) < 4 * num_data * num_tokens:
                raise RuntimeError(f"bench: a result of {len(body)} bytes holds no such numbers")
            return share(times, 0.99)

        samples = in_turn(run, "S3", p99_ms)
    what = f"the result of {num_data * num_tokens:,} log-probabilities, p99"
    yield row(run, "S3", what, samples, LARGE_MS, "ms")
