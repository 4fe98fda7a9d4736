"""The same comparisons with the engine on a GPU, where there is one."""

import pytest
import torch
from parity import ours

if not torch.cuda.is_available():
    pytest.skip("torch finds no CUDA device", allow_module_level=True)

from parity.test_generation import (  # noqa: F401
    test_greedy_tokens_equal_transformers,
    test_sampled_logprobs_equal_transformers_scores_of_the_same_tokens,
)
from parity.test_gradients import (  # noqa: F401
    test_every_adapters_gradient_equals_peft,
    test_every_weights_gradient_equals_transformers,
)
from parity.test_logprobs import (  # noqa: F401
    test_bfloat16_over_all_models_is_as_near_to_float32_as_transformers_bfloat16,
    test_packed_sequences_score_as_each_alone_in_transformers,
)


@pytest.fixture(autouse=True)
def on_the_gpu(monkeypatch):
    monkeypatch.setattr(ours, "DEVICE", "cuda")
