"""One end of a sync, as a worker: the model that trains all weights, or the sampler."""

import time

import torch
import torch.distributed

from twinkle.checkpoint_engine import GlooCheckpointEngine
from twinkle.checkpoint_engine.gloo import BUCKET_BYTES
from twinkle.core import core
from twinkle.engine.group import process_group, timeout_seconds


class System:
    def load(self, model, frozen):
        self.engine = core().Engine(model, mixed_precision="bf16")
        self.frozen = frozen
        self.engine.create(tenant="one", frozen=frozen).result()

    def name(self):
        return "Twinkle"

    def prepare(self):
        self.way = GlooCheckpointEngine()
        return self.way.prepare()

    def meet(self, address, rank):
        """Once as Twinkle does, and once for what is sent raw."""
        if rank > 0:
            self.way = GlooCheckpointEngine()
        self.way.init_process_group(address, rank, 2, 1)
        place = (rank, 2, timeout_seconds())
        host, port = address.split(":")
        store = torch.distributed.TCPStore(host, int(port), wait_for_workers=False)
        self.group = process_group(f"bench/{rank}", "bench", store, place)
        self.rank = rank
        self.memory = torch.zeros(BUCKET_BYTES, dtype=torch.uint8)

    def sync(self):
        start = time.perf_counter()
        call = self.way.receive_weights if self.frozen else self.way.send_weights
        done = call(self.engine, "one")
        return {"ms": 1e3 * (time.perf_counter() - start), "num_bytes": done["num_bytes"]}

    def raw(self, num_bytes):
        """Milliseconds of as many bytes from memory that is kept into memory that is kept, in
        messages of one bucket."""
        self.group.barrier().wait()
        start = time.perf_counter()
        for begin in range(0, num_bytes, BUCKET_BYTES):
            part = [self.memory[: min(BUCKET_BYTES, num_bytes - begin)]]
            work = self.group.send(part, 1, 0) if self.rank == 0 else self.group.recv(part, 0, 0)
            work.wait()
        return 1e3 * (time.perf_counter() - start)
