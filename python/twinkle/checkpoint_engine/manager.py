"""CheckpointEngineManager: that a sampler has its model's newest weights."""

from twinkle import checks
from twinkle.errors import InvalidError, NotAvailableError
from twinkle.model import TransformersModel
from twinkle.sampler import Sampler


class CheckpointEngineManager:
    """For a model and the sampler that shares its engine: TorchSampler(model=model).

    platform: 'GPU', or None; without effect, since nothing is sent. InvalidError: no
    TransformersModel, no Sampler, or one with weights of its own, which nothing would reach.
    NotAvailableError: another platform.
    """

    def __init__(self, model, sampler, platform="GPU"):
        if not isinstance(model, TransformersModel):
            checks.refuse("checkpoint_engine: model", model, "a TransformersModel")
        if not isinstance(sampler, Sampler):
            checks.refuse("checkpoint_engine: sampler", sampler, "a Sampler")
        if platform not in ("GPU", None):
            raise NotAvailableError(
                f"checkpoint_engine: platform is {platform!r}, in this version it is 'GPU', or None"
            )
        if getattr(sampler, "engine", None) is not model.engine:
            raise InvalidError(
                f"checkpoint_engine: the {type(sampler).__name__} has weights of its own, which "
                "training does not change: make it with model=model to sample from what is trained"
            )

    def sync_weights(self, merge_and_sync=True):
        """Returns at once: the sampler's next token is of the weights after the last step, of
        adapters without being merged, whose rounding would stay in the base. merge_and_sync: either
        way. InvalidError: it is neither True nor False."""
        checks.flag("checkpoint_engine: merge_and_sync", merge_and_sync)
