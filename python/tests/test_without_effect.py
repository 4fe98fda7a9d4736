"""The table of arguments without effect: each is one that its function, class or dict takes."""

import inspect

import pytest

import twinkle
from twinkle import loss
from twinkle.cli.table import GROUPS
from twinkle.kernel import kernelize
from twinkle.model import MultiLoraTransformersModel, arguments
from twinkle.sampler import vLLMSampler
from twinkle.without_effect import WITHOUT_EFFECT


def parameters(*functions):
    return {name for function in functions for name in inspect.signature(function).parameters}


TAKEN = {
    "CLI.from_args": {name for group in GROUPS.values() for name in group},
    "TransformersModel": set(arguments.NAMES),
    "MultiLoraTransformersModel": parameters(MultiLoraTransformersModel),
    "LoraConfig": parameters(twinkle.LoraConfig),
    "SAPOLoss": parameters(loss.SAPOLoss),
    "vLLMSampler.sleep, wake_up": parameters(vLLMSampler.sleep, vLLMSampler.wake_up),
    "kernelize": parameters(kernelize),
}
# Where the code that refuses other names reads the table, and where a call is tried elsewhere.
OTHERS = {
    "ddp_config", "fsdp_config", "vLLMSampler: engine_args", "DataLoader", "Template", "Dataset",
    "Dataset.map, filter, encode, check", "forward, forward_only, forward_backward",
    "forward, forward_only", "set_optimizer",
}  # fmt: skip


def test_every_place_of_the_table_is_known_here():
    assert set(WITHOUT_EFFECT) == TAKEN.keys() | OTHERS


@pytest.mark.parametrize("where", TAKEN)
def test_an_argument_of_the_table_is_one_that_is_taken(where):
    assert set(WITHOUT_EFFECT[where]) <= TAKEN[where]
