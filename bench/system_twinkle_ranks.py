"""Twinkle's engine over several processes, each a worker and a rank."""

import os
import time

import numpy as np
import system_twinkle

from twinkle import DeviceMesh
from twinkle.core import core
from twinkle.engine.group import engine_group
from twinkle.engine.ranks import ranks_of
from twinkle.errors import InternalError


class System(system_twinkle.System):
    """Every rank is asked the same at the same time, with all sequences, and gives its own part."""

    def load_rank(self, rank, size, port, **of_load):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.mesh = DeviceMesh.from_sizes(dp_size=size)
        self.load(**of_load)

    def make_engine(self, model, **options):
        with engine_group(self.mesh, ranks_of(self.mesh).watch) as group:
            return core().Engine(model, group=group, **options)

    def train(self, ids, labels, lr, repeats=1):
        mine = self.mesh.get_slice(len(ids))
        return super().train(ids[mine], labels[mine], lr, repeats)

    def train_until_error(self, ids, labels):
        """When it came, on the clock of all processes, and what it says."""
        sequence = {"input_ids": np.array(ids[0]), "labels": np.array(labels[0])}
        try:
            while True:
                self.engine.forward_backward(tenant="train", sequences=[sequence]).result()
        except InternalError as error:
            return {"time": time.monotonic(), "error": str(error)}
