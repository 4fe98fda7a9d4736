"""The classes that scripts subclass: each says what a subclass must define."""

import importlib
import inspect

import pytest

from twinkle.data_format import user_data_get

# "Customizable Components" of the documents.
BASES = {
    "loss.Loss": ((None, None), "__call__"),
    "metric.Metric": ((None, None), "accumulate"),
    "patch.Patch": ((None,), "__call__"),
    "preprocessor.Preprocessor": (({},), "__call__"),
    "preprocessor.Filter": (({},), "__call__"),
    "reward.Reward": (([],), "__call__"),
    "advantage.Advantage": (([],), "__call__"),
    "sampler.Sampler": (([],), "sample"),
    "model.TwinkleModel": ((), "forward_backward"),
    "notifier.Notifier": (("text",), "__call__"),
}


@pytest.mark.parametrize("name", BASES)
def test_a_base_names_what_is_missing(name):
    arguments, method = BASES[name]
    module, _, base = name.partition(".")
    base = getattr(importlib.import_module(f"twinkle.{module}"), base)
    assert inspect.isclass(base) and base.__doc__
    own = type("Own", (base,), {})()
    with pytest.raises(NotImplementedError, match=f"Own .*define {method}"):
        getattr(own, method)(*arguments)


def test_a_reward_and_an_advantage_of_ones_own_need_one_method():
    from twinkle.advantage import Advantage
    from twinkle.reward import Reward

    class Right(Reward):
        def __call__(self, trajectories):
            return [
                float(
                    str(user_data_get(t["user_data"], "ground_truth"))
                    in t["messages"][-1]["content"]
                )
                for t in trajectories
            ]

    class AboveMean(Advantage):
        def __call__(self, rewards, num_generations=1, scale="group"):
            import torch

            rewards = torch.tensor(rewards).reshape(-1, num_generations)
            return (rewards - rewards.mean(1, keepdim=True)).flatten()

    rows = [{"messages": [{"role": "assistant", "content": text}],
             "user_data": [["ground_truth", "4"]]} for text in ("it is 4", "5")]  # fmt: skip
    rewards = Right()(rows)
    assert rewards == [1.0, 0.0]
    assert AboveMean()(rewards, num_generations=2).tolist() == [0.5, -0.5]
