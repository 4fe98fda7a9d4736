"""Spellings of config.json that published checkpoints use: both sides read the same directory."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from parity import models, ours, reference

LLAMA, QWEN2, QWEN3 = 24, 25, 26  # without windows, whole heads turned by plain rope
UNTIED = next(i for i in range(models.COUNT) if "untied" in models.draw(i).marks)
ABSENT = object()
PLAIN = {"rope_parameters": ABSENT, "rope_theta": 10000.0}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

SPELLINGS = {
    "the kind of rope as type": (LLAMA, PLAIN | {"rope_scaling": {"type": "linear", "factor": 3}}),
    "yarn as type": (QWEN2, PLAIN | {"rope_scaling": {"type": "yarn", **YARN}}),
    "yarn without the original length": (
        QWEN3,
        PLAIN | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    ),
    "yarn with nulls": (
        QWEN2,
        PLAIN | {"rope_scaling": {"rope_type": "yarn", **YARN, "beta_fast": None, "mscale": None}},
    ),
    "yarn with one scale of two": (
        QWEN3,
        PLAIN | {"rope_scaling": {"rope_type": "yarn", **YARN, "mscale": 0.7}},
    ),
    "llama3 without the original length": (LLAMA, PLAIN | {"rope_scaling": LLAMA3}),
    "the original length beside the rope": (
        LLAMA,
        PLAIN | {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32},
    ),
    "the original length beside and in the rope": (
        LLAMA,
        PLAIN
        | {
            "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 128},
            "original_max_position_embeddings": 32,
        },
    ),
    "rope scaling that is null": (QWEN2, {"rope_scaling": None}),
    "rope scaling beside rope parameters": (
        LLAMA,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
        | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 10000.0},
    ),
    "no rope theta": (QWEN3, {"rope_parameters": ABSENT}),
    "a whole rope theta": (LLAMA, PLAIN | {"rope_theta": 500000}),
    "a window that is not used": (
        QWEN2,
        {"use_sliding_window": False, "sliding_window": 3, "max_window_layers": 0}
        | {"layer_types": ABSENT},
    ),
    "a window that is null": (
        QWEN3,
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}
        | {"layer_types": ABSENT},
    ),
    "a window above the last layer": (
        QWEN2,
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": ABSENT}
        | {"layer_types": ABSENT},
    ),
    "no norm epsilon": (QWEN2, {"rms_norm_eps": ABSENT}),
    "no activation": (LLAMA, {"hidden_act": ABSENT}),
    "no biases named": (LLAMA, {"attention_bias": ABSENT, "mlp_bias": ABSENT}),
    "tied, beside a head of its own": (UNTIED, {"tie_word_embeddings": True}),
    "several ends": (LLAMA, {"eos_token_id": [3, 5]}),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_config_means_what_it_means_to_transformers(spelling, tmp_path):
    index, changes = SPELLINGS[spelling]
    case = models.case(index)
    directory = Path(shutil.copytree(case.directory, tmp_path / "model"))
    config = json.loads((directory / "config.json").read_text())
    for name, value in changes.items():
        config[name] = value
        if value is ABSENT:
            del config[name]
    (directory / "config.json").write_text(json.dumps(config))
    theirs = models.load_reference(directory)
    logps, _ = ours.scores(ours.engine(directory, frozen=True), case.sequences)
    for mine, sequence in zip(logps, case.sequences, strict=True):
        with torch.no_grad():
            expected = reference.logps(theirs, sequence)
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-4)
