"""A real model's tenant alone and among fifteen others: the same bits, at length."""

import numpy as np
import pytest

from twinkle.engine import Engine

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("engine_built")]

TARGETS = ["all-linear", ["q_proj", "v_proj"], ["down_proj"]]
OPTIMIZERS = [("AdamW", {"lr": 1e-3}), ("SGD", {"lr": 0.05, "momentum": 0.9})]
STEPS = 20


def batch(seed, step):
    rng = np.random.default_rng([seed, step])
    out = []
    for _ in range(1 + seed % 3):
        ids = rng.integers(3, 40000, int(rng.integers(2, 60)))
        out.append({"input_ids": ids, "labels": np.append(ids[1:], -100)})
    return out


class Life:
    """One tenant's twenty steps, and everything that they show."""

    def __init__(self, engine, index):
        config = {"r": 1 + 3 * index, "target_modules": TARGETS[index % 3], "lora_dropout": 0.1}
        self.index, self.shown = index, []
        self.tenant = engine.tenant(f"tenant {index}", config, seed=index, weight=1.0 + index % 2)

    def step(self, step):
        for micro in range(1 + self.index % 2):
            self.shown.append(self.tenant.forward_backward(batch(self.index, 2 * step + micro)))
        name, options = OPTIMIZERS[self.index % 2]
        self.shown.append(self.tenant.step(name, max_grad_norm=0.5, **options))
        if step % 8 == 7:
            params = {"max_tokens": 6, "seed": step, "logprobs": 1}
            self.shown.append(self.tenant.sample([{"input_ids": [5, 6, 7 + step]}], params))

    def end(self):
        out = []
        for future in [*self.shown, self.tenant.inspect()]:
            result = future.result()
            if isinstance(result, dict) and "logps" in result:
                result = {**result, "logps": [row.tobytes() for row in result["logps"]]}
            out.append(result)
        return out


@pytest.mark.parametrize("mixed_precision", ["bf16", "no"])
def test_a_tenant_among_fifteen_others_has_the_bits_that_it_has_alone(smollm2_dir, mixed_precision):
    engine = Engine(smollm2_dir, mixed_precision, token_budget=256)
    lives = [Life(engine, index) for index in range(16)]
    for step in range(STEPS):
        for life in lives if step % 2 else reversed(lives):
            life.step(step)
    together = [life.end() for life in lives]
    del engine, lives
    for index in range(16):
        engine = Engine(smollm2_dir, mixed_precision)
        life = Life(engine, index)
        for step in range(STEPS):
            life.step(step)
        assert life.end() == together[index], index
