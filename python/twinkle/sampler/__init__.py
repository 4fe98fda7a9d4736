"""Samplers: text from a model, batched, with log-probabilities."""

from twinkle.sampler.base import Sampler
from twinkle.sampler.torch_sampler import TorchSampler, vLLMSampler

__all__ = ["Sampler", "TorchSampler", "vLLMSampler"]
