"""Checks of old_logps, the log-probabilities of the policy that sampled a batch."""

from twinkle.core import core
from twinkle.errors import require
from twinkle.logger import get_logger


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
        require(
            sampled in (None, temperature),
            f"model: old_logps of inputs[{index}] were sampled at temperature {sampled}, but the "
            f"batch is scored at {temperature}: pass temperature={sampled} here, and where a "
            "reference scores it; to compare the two anyway, pass list(reply.logprobs)",
        )
    given = kwargs.get("ref_outputs")
    reference = given if isinstance(given, dict) else {}
    scored, iters = reference.get("temperature"), reference.get("iters", 0)
    require(
        scored in (None, temperature),
        f"model: ref_outputs were scored at temperature {scored}, but the batch is scored at "
        f"{temperature}: pass temperature={temperature} to the reference's forward_only",
    )
    require(
        reference.get("scored_by") != scorer or iters == 0,
        f"model: ref_outputs were scored by the policy itself, after {iters} of its steps: a "
        "reference does not learn, so score it with disable_lora=True, with a second model, or "
        "before the first step; to compare with the policy as it was then, pass "
        "ref_logps=outputs['logps']",
    )


def warn_of_ratio(owner, sequences, logps):
    """Warns where the policy is far from the one that sampled, at the first batch with old
    log-probabilities of `owner`, a Compared or a Group. sequences: as the engine has taken them,
    with a loss's extras; logps: of each, what the policy says of its labels."""
    if owner.has_compared:
        return
    text = core().ratio_warning(sequences, logps)
    owner.has_compared = text is not None  # later batches are not near 1 when it learns
    if text:
        get_logger().warning(text)
