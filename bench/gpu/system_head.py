"""A language model's head in plain torch as a worker: frozen, with cross entropy, in chunks of rows
so that their logits fit."""

import torch
from device import Device

CHUNK = 2048  # rows


class System:
    def load(self, width, vocab, device):
        torch.manual_seed(0)
        self.device = Device(device)
        self.weight = torch.randn(vocab, width, device=device).mul_(width**-0.5).bfloat16()

    def name(self):
        return f"torch {torch.__version__}, in chunks of {CHUNK} rows"

    def train(self, labels):
        """Forward, and backward to the rows that come in, one for each label."""
        rows = torch.randn(len(labels), self.weight.shape[1], device=self.device.name).bfloat16()
        wanted = torch.tensor(labels, device=self.device.name)
        with self.device.meter() as meter:
            for chunk, of in zip(rows.split(CHUNK), wanted.split(CHUNK), strict=True):
                logits = chunk.detach().requires_grad_() @ self.weight.T
                torch.nn.functional.cross_entropy(logits.float(), of, reduction="sum").backward()
        return {"wall_s": meter.wall_s, "foreign": meter.foreign}
