"""Checks and converts twinkle.engine's arguments; errors name field, value and limits."""

import json

from twinkle import checks
from twinkle.data_format import SamplingParams
from twinkle.errors import require


def features_of(what, values):
    """A list of dicts, one of which may come alone. InvalidError: neither a list, a tuple nor a
    dict."""
    if not isinstance(values, (list, tuple, dict)):
        checks.refuse(what, values, "a list of InputFeatures")
    return [values] if isinstance(values, dict) else list(values)


def as_json(what, values):
    """JSON text of a dict, '' of an empty one. InvalidError: names a value that is not JSON; NaN
    and infinity are not."""
    for key, value in values.items():
        if not is_json(value):
            must = "a finite number, a text, True or False, or a list of them"
            checks.refuse(f"{what}: {key}", value, must)
    return json.dumps(values) if values else ""


def is_json(value):
    """True for what JSON has."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def clip_arguments(folder, max_grad_norm, norm_type):
    """Both by name, for the engine. folder: 'model' or 'engine', for errors. InvalidError:
    max_grad_norm below 0, norm_type not above 0, no numbers."""
    return {
        "max_grad_norm": checks.number(
            f"{folder}: max_grad_norm", max_grad_norm, least=0, infinite=True
        ),
        "norm_type": checks.number(f"{folder}: norm_type", norm_type, above=0, infinite=True),
    }


def params_of(params):
    """SamplingParams of what sample() was given: such, a dict, or None. InvalidError: another
    thing, or a dict that SamplingParams.from_dict refuses."""
    params = SamplingParams() if params is None else params
    if isinstance(params, dict):
        params = SamplingParams.from_dict(params)
    if not isinstance(params, SamplingParams):
        checks.refuse("engine: sampling_params", params, "SamplingParams or a dict")
    return params


def room_for(params, index, room):
    """`room`, the tokens that fit after prompt `index`. InvalidError: max_tokens is more, or there
    is no room for one; with max_tokens=0 only where the prompt itself does not fit."""
    wanted = params.max_tokens
    require(
        room >= (wanted != 0) and (wanted is None or wanted <= room),
        f"engine: max_tokens of prompt {index} is {wanted}, the model's positions leave room for "
        f"{room}",
    )
    return room
