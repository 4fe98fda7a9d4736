"""A sampler's group that gets its weights from a model's group: what one process samples."""

import json
from pathlib import Path

import pytest

GRPO = Path(__file__).with_name("grpo.py")


@pytest.mark.parametrize(("model_ranks", "sampler_ranks"), [(1, 1), (2, 1), (1, 2)])
def test_grpo_over_two_groups_samples_and_trains_as_one_process(
    model_ranks, sampler_ranks, cluster, tiny_llama_dir
):
    alone = cluster.run([GRPO, tiny_llama_dir, 3, 0, 0]).stdout.splitlines()[-1]
    together = cluster.run([GRPO, tiny_llama_dir, 3, model_ranks, sampler_ranks])
    assert together.stdout.splitlines()[-1] == alone
    steps = json.loads(alone)
    assert steps[0][0] != steps[1][0] and all(step[2] > 0 for step in steps)
