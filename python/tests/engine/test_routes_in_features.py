"""Where sampled tokens went, in features that a template cut and in rows that ranks joined."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from twinkle.core import core
from twinkle.data_format import SamplingParams
from twinkle.engine.sampling import response_of
from twinkle.errors import InvalidError
from twinkle.remote.collect import join_rows

PROMPT, TOKENS = np.arange(4), [7, 7, 8]
ROUTES = np.arange(6 * 2 * 3, dtype=np.int32)  # all tokens but the last, [6, 2, 3]


def cutting(strategy, most):
    """A template that keeps at most so many tokens."""

    def concat(feature, tokens):
        ids = [*feature["input_ids"], *tokens]
        return {**feature, "input_ids": ids[-most:] if strategy == "left" else ids[:most]}

    return SimpleNamespace(
        truncation_strategy=strategy, concat_input_feature=concat, decode=lambda ids, **_: ""
    )


def feature_of(template, routed=True, **given):
    item = {"tokens": TOKENS, "logprobs": [], "stop_reason": "length", "routed_experts": ROUTES}
    params = SamplingParams(routed_experts=routed)
    feature = {"input_ids": PROMPT.tolist(), **given}
    response = response_of(feature, PROMPT, [item], params, template, (-1, 2, 3))
    return response.sequences[0].new_input_feature


@pytest.mark.parametrize("strategy", ["left", "right"])
@pytest.mark.parametrize("most", [7, 6, 5, 2])
def test_routes_are_those_of_the_tokens_that_a_template_keeps(strategy, most):
    routes = feature_of(cutting(strategy, most))["routed_experts"]
    rows = ROUTES.reshape(-1, 2, 3)
    kept = range(7)[-most:] if strategy == "left" else range(7)[:most]
    assert np.array_equal(routes, rows[[i for i in kept if i < 6]])


def test_routes_of_an_earlier_turn_do_not_stay_where_none_are_asked_for():
    earlier = np.zeros((4, 2, 3), np.int32)
    assert "routed_experts" not in feature_of(cutting("right", 9), False, routed_experts=earlier)


def test_rows_of_ranks_are_widened_with_what_the_model_pads_with():
    parts = [
        {"routed_experts": torch.ones(1, n, 2, 3, dtype=torch.int64), "logps": torch.ones(1, n)}
        for n in (2, 3)
    ]
    whole = join_rows(parts)
    assert (whole["routed_experts"][0, 2] == -1).all() and whole["logps"][0, 2] == 0
    assert (whole["routed_experts"][1] == 1).all()


def test_samples_with_routes_are_not_packed():
    row = {"input_ids": [1, 2], "routed_experts": np.zeros((1, 2, 3))}
    with pytest.raises(InvalidError, match="routed_experts, which packed rows do not carry"):
        core().Dataset.of([{"input_ids": [3]}, row]).packed(9, 9)
