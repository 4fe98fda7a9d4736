"""Weights from a model to its sampler. In one process TorchSampler(model=model) samples from the
weights that are trained: the next token sees them, and nothing is sent."""

from twinkle.checkpoint_engine.manager import CheckpointEngineManager
from twinkle.errors import later

__all__ = ["CheckpointEngineManager"]

__getattr__ = later(
    __name__,
    dict.fromkeys(
        ("CheckpointEngine", "CheckpointEngineMixin", "CheckpointEngineRegistry"),
        "samplers in other processes (TorchSampler(model=model) samples from what is trained)",
    ),
)
