"""The parameters of sample(), as it was given them and as they are taken."""

from dataclasses import replace
from types import SimpleNamespace

from twinkle.data_format import SamplingParams
from twinkle.errors import require

_INT32_MAX = 2**31 - 1


def as_given(given, named):
    """The subject of a call, before it is known whether its parameters can be: computes, whether
    the engine is asked; draws, whether seeds are."""
    fields = named if given is None else given
    if not isinstance(fields, dict):
        fields = getattr(given, "__dict__", {})
    most = fields.get("max_tokens", fields.get("max_new_tokens"))
    draws = fields.get("seed") is None and fields.get("temperature", 1.0) != 0 and most != 0
    return SimpleNamespace(
        computes=most != 0 or fields.get("prompt_logprobs") is not None, draws=draws
    )


def _check_widths(params):
    """Numbers that the engine could not hold."""
    given = [(f"stop[{i}]", 0, value) for i, value in enumerate(params.stop_token_ids)]
    given += [("top_k", -1, params.top_k), ("num_samples", 1, params.num_samples)]
    for name, least, value in given:
        require(
            value is None or least <= value <= _INT32_MAX,
            f"sampler: {name} is {value}, it must be from {least} to {_INT32_MAX}",
        )


def params_of(given, named, args):
    """SamplingParams of sample()'s, or of the fields that it was given by name. InvalidError: they
    can't be."""
    require(
        given is None or not named,
        f"sampler: {', '.join(sorted(named))} is given next to sampling_params: put it there",
    )
    params = SamplingParams.from_dict(named) if given is None else given
    if isinstance(params, dict):
        params = SamplingParams.from_dict(params)
    require(
        isinstance(params, SamplingParams),
        f"sampler: sampling_params is {params!r}, it must be SamplingParams or a dict",
    )
    _check_widths(params)
    args.check_logprobs(params)
    return replace(params, routed_experts=True) if args.routed_experts else params
