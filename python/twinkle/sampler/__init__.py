"""Samplers: text from a model, batched, with log-probabilities."""

from twinkle.sampler.base import Sampler
from twinkle.sampler.engine_args import INERT
from twinkle.sampler.torch_sampler import TorchSampler, vLLMSampler

__all__ = ["INERT", "Sampler", "TorchSampler", "vLLMSampler"]
