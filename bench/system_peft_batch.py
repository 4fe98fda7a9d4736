"""transformers + peft as a worker with several adapters: set_adapter, a step, and the next one."""

import peft
import system_peft
import torch


class System(system_peft.System):
    def start_tenants(self, names, folder):
        """Reads the adapters FOLDER/NAME."""
        for name in names:
            directory = f"{folder}/{name}"
            if name == names[0]:
                self.tuned = peft.PeftModel.from_pretrained(
                    self.model, directory, adapter_name=name, is_trainable=True
                )
            else:
                self.tuned.load_adapter(directory, adapter_name=name, is_trainable=True)
        self.tuned.train()
        self.optimizers = {}
        for name in names:
            self.tuned.set_adapter(name)
            trained = [p for p in self.tuned.parameters() if p.requires_grad]
            self.optimizers[name] = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01)

    def train_tenants(self, steps, lr, together):
        """As system_twinkle_batch's; the adapters can only work one after the other."""
        del together
        batches = [
            {name: self.padded(batch["ids"], batch["labels"]) for name, batch in step.items()}
            for step in steps
        ]
        losses = []
        with self.device.meter() as meter:
            for step in batches:
                losses.append({})
                for name, batch in step.items():
                    self.tuned.set_adapter(name)
                    self.optimizers[name].param_groups[0]["lr"] = lr
                    losses[-1][name] = self.step(self.optimizers[name], batch).item()
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "losses": losses}
