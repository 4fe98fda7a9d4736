"""What the machine can do at best, by plain torch: matrix products and a read of memory."""

import time

import torch
from foreign import Meter

SHAPES = ((1024, 576, 1536), (2048, 2048, 2048))  # rows, inner, columns: the model's own; large
READ_MIB = 1024  # far more than any cache


class System:
    def __init__(self):
        self.products = [
            (torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()) for m, k, n in SHAPES
        ]
        self.wide = [(left.float(), right.float()) for left, right in self.products]
        self.memory = torch.ones(READ_MIB << 18, dtype=torch.float32)

    def gemm(self):
        """bf16 GFLOP/s of each shape."""
        with Meter() as meter:
            rates = [self._rate(left, right) for left, right in self.products]
        return {"rates": rates, "foreign": meter.foreign}

    def gemm_fp32(self):
        """fp32 GFLOP/s of each shape."""
        with Meter() as meter:
            rates = [self._rate(left, right) for left, right in self.wide]
        return {"rates": rates, "foreign": meter.foreign}

    @staticmethod
    def _rate(left, right, least_s=0.4):
        flops = 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
        count, start = 0, time.perf_counter()
        while (now := time.perf_counter() - start) < least_s:
            torch.mm(left, right)
            count += 1
        return flops * count / now / 1e9

    def bandwidth(self):
        """GB/s of reading."""
        with Meter() as meter:
            for _ in range(4):
                self.memory.sum()
        return {"rate": 4 * self.memory.nbytes / meter.wall_s / 1e9, "foreign": meter.foreign}
