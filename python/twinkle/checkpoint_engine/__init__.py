"""Weights from a model to its sampler. TorchSampler(model=model) samples from the weights that are
trained, and nothing is sent; a sampler with an engine of its own gets them by sync_weights, in this
process or from others."""

from twinkle.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from twinkle.checkpoint_engine.gloo import GlooCheckpointEngine
from twinkle.checkpoint_engine.manager import CheckpointEngineManager
from twinkle.checkpoint_engine.mixin import CheckpointEngineMixin

__all__ = [
    "CheckpointEngine",
    "CheckpointEngineManager",
    "CheckpointEngineMixin",
    "CheckpointEngineRegistry",
    "GlooCheckpointEngine",
]
