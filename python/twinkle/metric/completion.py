"""Metrics of sampling and rewards."""

import statistics
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
        if outputs is None:
            names = ("completion_lengths", "generate_time", "rewards", "weight_sync_time")
            refuse_unknown("metric: CompletionRewardMetric", kwargs, names)
        del inputs
        for name, values in (rewards or {}).items():
            self._rewards.setdefault(name, []).extend(map(float, values))
        self._lengths.extend(map(float, [] if completion_lengths is None else completion_lengths))
        for name, seconds in (
            ("move_model_to_sampler", weight_sync_time),
            ("generate", generate_time),
        ):
            if seconds is not None:
                self._seconds.setdefault(name, []).append(float(seconds))

    def calculate(self):
        of_ranks = self.gather_results([(self._rewards, self._lengths, self._seconds)])
        rewards, lengths, seconds = {}, [], {}
        for more_rewards, more_lengths, more_seconds in of_ranks:
            for known, more in ((rewards, more_rewards), (seconds, more_seconds)):
                for name, values in more.items():
                    known.setdefault(name, []).extend(values)
            lengths += more_lengths
        out = {
            f"profiling/Time taken: {name}": statistics.fmean(values)
            for name, values in seconds.items()
        }
        for name, values in rewards.items():
            if values:
                out[f"train/{name}_reward"] = statistics.fmean(values)
                out[f"train/{name}_reward_std"] = (
                    statistics.stdev(values) if len(values) > 1 else 0.0
                )
        if lengths:
            out["train/completion_length"] = statistics.fmean(lengths)
        return out

    def reset(self):
        self._rewards, self._lengths, self._seconds = {}, [], {}
