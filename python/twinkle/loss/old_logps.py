"""Checks of old_logps, the log-probabilities of the policy that sampled a batch."""

import numpy as np

from twinkle.errors import InvalidError
from twinkle.logger import get_logger

_NEAR = 0.8, 1.25  # a first step's mean ratio, which is 1 but for rounding


class Compared:
    """A run, and whether its policy has been compared with old log-probabilities."""

    has_compared = False


def check_scores(kwargs, temperature, scorer):
    """InvalidError: kwargs have old_logps of a sampler, or ref_outputs of a reference, whose
    temperature is not this one; ref_outputs of a policy that had learnt and is `scorer` itself, as
    outputs name it in scored_by."""
    old = kwargs.get("old_logps")
    for index, row in enumerate(old if isinstance(old, (list, tuple)) else ()):
        sampled = getattr(row, "temperature", None)
        if sampled in (None, temperature):
            continue
        raise InvalidError(
            f"model: old_logps of inputs[{index}] were sampled at temperature {sampled}, but the "
            f"batch is scored at {temperature}: pass temperature={sampled} here, and where a "
            "reference scores it; to compare the two anyway, pass list(reply.logprobs)"
        )
    reference = kwargs.get("ref_outputs")
    if not isinstance(reference, dict):
        return
    scored = reference.get("temperature")
    if scored not in (None, temperature):
        raise InvalidError(
            f"model: ref_outputs were scored at temperature {scored}, but the batch is scored at "
            f"{temperature}: pass temperature={temperature} to the reference's forward_only"
        )
    iters = reference.get("iters", 0)
    if reference.get("scored_by") == scorer and iters > 0:
        raise InvalidError(
            f"model: ref_outputs were scored by the policy itself, after {iters} of its steps: a "
            "reference does not learn, so score it with disable_lora=True, with a second model, or "
            "before the first step; to compare with the policy as it was then, pass "
            "ref_logps=outputs['logps']"
        )


def warn_of_ratio(owner, sequences, logps):
    """Warns where the policy is far from the one that sampled, at the first batch with old
    log-probabilities of `owner`, a Compared or a Group. sequences: as the engine has taken them,
    with a loss's extras; logps: of each, what the policy says of its labels."""
    if owner.has_compared:
        return
    gaps = [_gaps(s, new) for s, new in zip(sequences, logps, strict=True)]
    gaps = np.concatenate([gap for gap in gaps if gap is not None] or [np.zeros(0)])
    if not gaps.size:
        return
    owner.has_compared = True  # later batches are not near 1 when it learns
    with np.errstate(over="ignore"):
        ratio, geometric = float(np.exp(gaps).mean()), float(np.exp(gaps.mean()))
    low, high = _NEAR
    if not (low <= ratio <= high and low <= geometric <= high):
        get_logger().warning(
            f"model: the ratio of the policy to old_logps is {ratio:.3g} in the mean of this run's "
            f"first batch with them, and {geometric:.3g} in the geometric mean: it is near 1 where "
            "the same weights sampled at the same temperature; compare temperature, the sampler's "
            "weights and the tokens that have labels"
        )


def _gaps(sequence, logps):
    """log p minus the old one of the labels that a loss learns from; None: it has no old ones."""
    extras = sequence.get("extras", {})
    old = extras.get("old_logps", extras.get("logprobs"))
    if old is None or "labels" not in sequence:
        return None
    learns = np.asarray(sequence["labels"]) != -100
    if "weights" in sequence:
        learns = learns & (np.asarray(sequence["weights"]) != 0)
    if "logprobs" in extras:  # Tinker's losses score prompts, too, whose advantages are 0
        learns = learns & (np.asarray(extras.get("advantages", 1)) != 0)
    return np.asarray(logps, np.float64)[learns] - np.asarray(old, np.float64)[learns]
