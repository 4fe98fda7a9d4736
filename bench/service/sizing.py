"""Memory and disk of tenants of `twinkle serve`: cd bench && ../.venv/bin/python -m service.sizing
[MODEL]

Prints, for ranks 8, 16 and 32, memory and disk as they are measured beside the formulas of
docs/operating.md. Memory is that of the process; nothing else of the machine is looked at.
"""

import sys
from dataclasses import dataclass

from limits import Shape
from service.client import Client, forward_backward_of
from service.training import NAME, Tenant, service

TENANTS = 8
TOKENS = 128  # in a step
RANKS = 8, 16, 32
MIB = 2**20


@dataclass
class Run:
    """The part of a run that service() needs."""

    model: str
    device: str = "cpu"
    threads: int = 2


def size_of(folder):
    """Bytes of its files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def row(what, measured, formula):
    print(f"{what:58} {measured:10.2f} {formula:10.2f}", flush=True)


def measure(model, rank):
    weights = Shape.of(model).adapter_weights(rank)
    tokens = [*range(10, 10 + TOKENS)]
    rows = [(tokens, tokens[1:] + tokens[:1], [1.0] * TOKENS)]
    with service(Run(model)) as server:
        first = Tenant(server, 0, rank)
        first.step(rows)  # the engine's own memory
        before = server.rss_mib()
        for seed in range(TENANTS):
            Tenant(server, seed, rank).step(rows)
        each = (server.rss_mib() - before) / TENANTS
        row(f"rank {rank}: memory of a tenant, MiB", each, 12 * weights / MIB)
        journal = size_of(server.state / "journal")
        first.step(rows)
        written = size_of(server.state / "journal") - journal
        asked = len(forward_backward_of("", 1, rows))
        row(f"rank {rank}: journal of a step of {TOKENS} tokens, KiB", written / 1024, asked / 1024)
        for route, bytes_each in (("save_weights", 12), ("save_weights_for_sampler", 4)):
            before = size_of(server.state / "checkpoints")
            first.save(route, path="one")
            taken = (size_of(server.state / "checkpoints") - before) / MIB
            row(f"rank {rank}: disk of {route}, MiB", taken, bytes_each * weights / MIB)


def sampling(model, shape):
    with service(Run(model)) as server, Client(server.port) as client:
        before = server.rss_mib()
        session = client.post("create_session")["session_id"]
        sampler = client.post(
            "create_sampling_session", session_id=session, sampling_session_seq_id=0,
            base_model=NAME,
        )["sampling_session_id"]  # fmt: skip
        for seq_id, count in enumerate((1, 400)):
            prompt = {"chunks": [{"type": "encoded_text", "tokens": [5 + seq_id] * count}]}
            asked = client.post(
                "asample", sampling_session_id=sampler, seq_id=seq_id, num_samples=1,
                prompt=prompt, sampling_params={"max_tokens": 1},
            )  # fmt: skip
            client.result(asked["request_id"])
            what = f"sampling behind a prompt of {count} tokens: more memory, MiB"
            row(what, server.rss_mib() - before, shape.kv_bytes * count / MIB)


def main(model="smollm2"):
    from twinkle import hub

    model = hub.get(model)
    print(f"{'':58} {'measured':>10} {'formula':>10}")
    with service(Run(model)) as server:
        row("the server with its model, MiB", server.rss_mib(), Shape.of(model).bytes / MIB)
    for rank in RANKS:
        measure(model, rank)
    sampling(model, Shape.of(model))


if __name__ == "__main__":
    main(*sys.argv[1:])
