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
    _given = ()  # pairs of a name and a number

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
        must = "a model's dict, or left out: pass completion_lengths= and rewards= by name"
        for name, one in (("inputs", inputs), ("outputs", outputs)):
            checks.instance(f"metric: {name} of CompletionRewardMetric", one, Mapping | None, must)
        if outputs is None:
            known = ("completion_lengths", "generate_time", "rewards", "weight_sync_time")
            refuse_unknown("metric: CompletionRewardMetric", kwargs, known)
        given = {f"train/{name}_reward": values for name, values in (rewards or {}).items()}
        given["train/completion_length"] = completion_lengths
        times = {"generate": generate_time, "move_model_to_sampler": weight_sync_time}
        given |= {f"profiling/Time taken: {n}": t if t is None else [t] for n, t in times.items()}
        there = {name: values for name, values in given.items() if values is not None}
        self._given += tuple((n, float(value)) for n, values in there.items() for value in values)

    def calculate(self):
        out, of_names = {}, defaultdict(list)
        for name, value in self.gather_results(self._given):
            of_names[name].append(value)
        for name, values in of_names.items():
            out[name] = statistics.fmean(values)
            if name.endswith("_reward"):
                out[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        return out

    def reset(self):
        self._given = ()
