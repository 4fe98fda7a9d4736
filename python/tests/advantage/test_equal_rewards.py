"""A batch whose rewards teach nothing is warned of."""

import pytest

from twinkle import get_logger
from twinkle.advantage import GRPOAdvantage, RLOOAdvantage


@pytest.mark.parametrize("advantage", [GRPOAdvantage(), RLOOAdvantage()])
def test_rewards_that_are_equal_for_each_prompt_are_warned_of_once(advantage, logged):
    get_logger()._seen.discard("advantage: equal rewards")
    advantage([0.0, 1.0, 0.5, 0.5], num_generations=2)
    assert logged == []
    for _ in range(2):
        assert advantage([0.0, 0.0, 1.0, 1.0], num_generations=2).tolist() == [0] * 4
    assert len(logged) == 1 and "this batch teaches nothing" in logged[0]
