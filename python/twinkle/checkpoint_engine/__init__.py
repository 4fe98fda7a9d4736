"""Weights from a model to samplers in other processes: not in this version. In one process
TorchSampler(model=model) samples from the weights that are trained, and nothing is sent."""

from twinkle.errors import later

__all__ = []

__getattr__ = later(
    __name__,
    dict.fromkeys(
        (
            "CheckpointEngine", "CheckpointEngineManager", "CheckpointEngineMixin",
            "CheckpointEngineRegistry",
        ),
        "samplers in other processes (TorchSampler(model=model) samples what is trained)",
    ),
)  # fmt: skip
