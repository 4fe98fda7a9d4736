"""Twinkle's objects in the workers of a Ray cluster of its own, and bare actors in the same one."""

import os
import statistics
import time
from pathlib import Path

import numpy as np

import twinkle
from twinkle import DeviceGroup, LoraConfig, TransformersModel, remote_class, remote_function

GROUPS = "first", "second"


@remote_class(execute="all")
class Ours:
    @remote_function(dispatch="all", collect="first", lazy_collect=False)
    def nothing(self):
        return None

    @remote_function(dispatch="all", collect="first")
    def made(self, megabytes):
        return np.ones(megabytes << 20, np.uint8)

    @remote_function(dispatch="all", collect="first", lazy_collect=False)
    def size(self, array):
        return int(array.nbytes)


class Bare:
    def nothing(self):
        return None

    def made(self, megabytes):
        return np.ones(megabytes << 20, np.uint8)

    def size(self, array):
        return int(array.nbytes)


def median_ms(count, call):
    each = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        each.append(time.perf_counter() - start)
    return 1e3 * statistics.median(each)


class System:
    def load(self, model, in_workers):
        os.environ["TWINKLE_DEVICE"], place = "cpu", {}
        if in_workers:
            os.environ["RAY_ADDRESS"] = "local"  # whatever else runs on this machine
            os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # for the classes above
            groups = [DeviceGroup(name, 1, "cpu") for name in GROUPS]
            twinkle.initialize(mode="ray", groups=groups)
            self._start_actors()
            place = {"remote_group": GROUPS[0]}
        self.model = TransformersModel(model_id=model, **place)
        config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
        self.model.add_adapter_to_model("default", config)
        self.model.set_optimizer("AdamW", lr=1e-3)

    def _start_actors(self):
        import ray

        self.ours = [Ours(remote_group=name) for name in GROUPS]
        self.bare = [ray.remote(Bare).options(num_cpus=0).remote() for _ in GROUPS]
        ray.get([actor.nothing.remote() for actor in self.bare])

    def null_calls(self, count):
        """Milliseconds of a call, the median of so many one after the other."""
        import ray

        ours, bare = self.ours[0], self.bare[0]
        return {
            "ours": median_ms(count, ours.nothing),
            "peer": median_ms(count, lambda: ray.get(bare.nothing.remote())),
        }

    def hand_over(self, count, megabytes):
        """Likewise of two calls, of which the second takes the first one's result elsewhere."""
        import ray

        (first, second), (one, two) = self.ours, self.bare
        return {
            "ours": median_ms(count, lambda: second.size(first.made(megabytes))),
            "peer": median_ms(count, lambda: ray.get(two.size.remote(one.made.remote(megabytes)))),
        }

    def train(self, ids, labels):
        """Seconds of forward_backward; the step that follows is not measured."""
        rows = [{"input_ids": i, "labels": t} for i, t in zip(ids, labels, strict=True)]
        start = time.perf_counter()
        loss = float(self.model.forward_backward(inputs=rows)["loss"])
        seconds = time.perf_counter() - start
        self.model.clip_grad_and_step()
        return {"wall_s": seconds, "loss": loss}
