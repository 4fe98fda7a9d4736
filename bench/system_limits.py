"""The machine at its best, by plain torch: matrix products and a read of memory."""

import time

import torch
from device import Device


class System:
    def load(self, device, shapes, read_mib):
        """shapes: rows, inner, columns of products; read_mib: far more than any cache."""
        self.device = Device(device)
        self.products = [
            tuple(torch.randn(shape, device=device).bfloat16() for shape in ((m, k), (k, n)))
            for m, k, n in shapes
        ]
        self.wide = [(left.float(), right.float()) for left, right in self.products]
        self.memory = torch.ones(read_mib << 18, dtype=torch.float32, device=device)

    def gemm(self):
        """bf16 GFLOP/s of each shape."""
        with self.device.meter() as meter:
            rates = [self._rate(left, right) for left, right in self.products]
        return {"rates": rates, "foreign": meter.foreign}

    def gemm_fp32(self):
        """fp32 GFLOP/s of each shape."""
        with self.device.meter() as meter:
            rates = [self._rate(left, right) for left, right in self.wide]
        return {"rates": rates, "foreign": meter.foreign}

    def _rate(self, left, right, least_s=0.4):
        flops = 2.0 * left.shape[0] * left.shape[1] * right.shape[1]
        at_a_time = 1 if self.device.name == "cpu" else 20  # that wait in the device's queue
        self.device.wait()
        count, start = 0, time.perf_counter()
        while (now := time.perf_counter() - start) < least_s:
            for _ in range(at_a_time):
                torch.mm(left, right)
            self.device.wait()
            count += at_a_time
        return flops * count / now / 1e9

    def bandwidth(self):
        """GB/s of reading."""
        with self.device.meter() as meter:
            for _ in range(4):
                self.memory.sum()
        return {"rate": 4 * self.memory.nbytes / meter.wall_s / 1e9, "foreign": meter.foreign}
