"""transformers + peft as a worker that holds many adapters, each with an optimizer of its own."""

import time

import peft
import system_peft
import torch
from system_twinkle_tenants import TOKENS, rss_mib


class System(system_peft.System):
    def grow(self, count, rank):
        """Adds adapters and trains each one step. The first is not counted: it warms up."""
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        ids = torch.arange(TOKENS).unsqueeze(0) + 100
        self.kept, create_ms = [], []
        for index in range(count + 1):
            start = time.perf_counter()
            if index == 0:
                self.tuned = peft.get_peft_model(self.model, config, adapter_name="tenant-0")
            else:
                self.tuned.add_adapter(f"tenant-{index}", config)
            self.tuned.set_adapter(f"tenant-{index}")
            trained = [p for p in self.tuned.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=1e-3)
            create_ms.append(1e3 * (time.perf_counter() - start))
            self.tuned(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            self.kept.append(optimizer)
            if index == 0:
                before = rss_mib()
        return {"each_mib": (rss_mib() - before) / count, "create_ms": create_ms[1:]}
