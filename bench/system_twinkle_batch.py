"""Twinkle's engine as a worker that trains several tenants: in one batch, or one by one."""

import json

import numpy as np
import system_twinkle


class System(system_twinkle.System):
    def start_tenants(self, names, ranks, folder=None, targets="all-linear"):
        """Tenants with adapters of these ranks; with `folder`, each is written to FOLDER/NAME."""
        for seed, (name, rank) in enumerate(zip(names, ranks, strict=True)):
            config = {"r": rank, "lora_alpha": 2 * rank, "target_modules": targets}
            self.create(name, lora_json=json.dumps(config), seed=seed)
            if folder:
                self.engine.save(tenant=name, directory=f"{folder}/{name}").result()

    def train_tenants(self, steps, lr, together):
        """steps: a list of {tenant: {"ids", "labels"}}. Returns losses as a list of {tenant: loss}.

        together: everything is submitted at once and the engine forms the batches, as the queues
        of a busy service are; else every operation ends before the next is submitted.
        """
        options = json.dumps({"lr": lr, "weight_decay": 0.01})
        batches = [{name: sequences(batch) for name, batch in step.items()} for step in steps]
        futures = []
        with self.device.meter() as meter:
            for step in batches:
                futures.append({})
                for name, batch in step.items():
                    futures[-1][name] = self.engine.forward_backward(tenant=name, sequences=batch)
                    if not together:
                        futures[-1][name].result()
                        self._step(name, options).result()
                if together:
                    last = [self._step(name, options) for name in step]
            if together:
                for future in last:
                    future.result()
        losses = [
            {name: loss_of(future.result()) for name, future in step.items()} for step in futures
        ]
        return {"wall_s": meter.wall_s, "foreign": meter.foreign, "losses": losses}

    def _step(self, name, options):
        return self.engine.step(tenant=name, optimizer="AdamW", options=options)


def sequences(batch):
    return [
        {"input_ids": np.array(i), "labels": np.array(t)}
        for i, t in zip(batch["ids"], batch["labels"], strict=True)
    ]


def loss_of(out):
    return out["loss"] / out["num_tokens"]
