"""Metrics of sampling and rewards."""

import statistics
from collections import defaultdict
from collections.abc import Mapping

from twinkle import checks
from twinkle.errors import refuse_unknown
from twinkle.metric.base import Metric


class CompletionRewardMetric(Metric):
    """Since the last reset: train/NAME_reward and train/NAME_reward_std, the mean and the sample
    deviation (0 of one) of each reward; train/completion_length, the mean in tokens;
    'profiling/Time taken: generate' and 'profiling/Time taken: move_model_to_sampler', the mean
    seconds. What was never given is not there. Over several processes they are of what all have
    been given, on each: all call calculate."""

    needs_inputs = False

    def __init__(self, device_mesh=None, process_group=None):
        super().__init__(device_mesh, process_group)
        self.reset()

    def accumulate(
        self,
        inputs=None,
        outputs=None,
        *,
        completion_lengths=None,
        rewards=None,
        generate_time=None,
        weight_sync_time=None,
        **kwargs,
    ):
        """completion_lengths: tokens of each reply; rewards: {name: the reward of each reply};
        generate_time, weight_sync_time: seconds. A model that this metric is added to gives none of
        them. InvalidError: a script's call has another argument, or passes these by position."""
        for name, given in (("inputs", inputs), ("outputs", outputs)):
            if given is not None and not isinstance(given, Mapping):
                must = "a model's dict, or left out: pass completion_lengths= and rewards= by name"
                checks.refuse(f"metric: {name} of CompletionRewardMetric", given, must)
        times = {"generate": generate_time, "move_model_to_sampler": weight_sync_time}
        if outputs is None:
            known = ("completion_lengths", "generate_time", "rewards", "weight_sync_time")
            refuse_unknown("metric: CompletionRewardMetric", kwargs, known)
        for name, values in (rewards or {}).items():
            self._given[f"train/{name}_reward"] += map(float, values)
        if completion_lengths is not None:
            self._given["train/completion_length"] += map(float, completion_lengths)
        for name, seconds in times.items():
            if seconds is not None:
                self._given[f"profiling/Time taken: {name}"].append(float(seconds))

    def calculate(self):
        all_given = defaultdict(list)
        for of_rank in self.gather_results([dict(self._given)]):
            for name, values in of_rank.items():
                all_given[name] += values
        out = {}
        for name, values in all_given.items():
            if values:
                out[name] = statistics.fmean(values)
            if values and name.endswith("_reward"):
                out[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        return out

    def reset(self):
        self._given = defaultdict(list)
