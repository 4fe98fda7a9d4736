"""Checks and converts twinkle.engine's arguments; errors name field, value and limits."""

import dataclasses
import os

from twinkle import checks, hub
from twinkle.data_format import LoraConfig, SamplingParams
from twinkle.template.template import resolve


def adapter_of(lora_config, model_id):
    """(LoraConfig, the fields of a create) of an adapter. lora_config: as LoraConfig.from_any takes
    it, or the hub's id of a PEFT directory."""
    is_path = isinstance(lora_config, (str, os.PathLike))
    directory = resolve(lora_config) if is_path else ""
    config = LoraConfig.from_any(directory or lora_config)
    if config.target_modules is None and not config.target_parameters:
        # As peft does for these families.
        config = dataclasses.replace(config, target_modules=["q_proj", "v_proj"])
    if directory:
        return config, {"directory": directory}
    named = config.base_model_name_or_path or hub.name_of(model_id)
    config = dataclasses.replace(config, base_model_name_or_path=named)
    return config, {"lora_json": config.to_json()}


def clip_arguments(folder, max_grad_norm, norm_type):
    """Both by name, for the engine. folder: 'model' or 'engine', for errors. InvalidError:
    max_grad_norm below 0, norm_type not above 0, no numbers."""
    most = checks.number(f"{folder}: max_grad_norm", max_grad_norm, least=0, infinite=True)
    norm_type = checks.number(f"{folder}: norm_type", norm_type, above=0, infinite=True)
    return {"max_grad_norm": most, "norm_type": norm_type}


def params_of(folder, params):
    """SamplingParams of what sample() was given: such, a dict, or None. folder: 'sampler' or
    'engine', for errors. InvalidError: another thing, or a dict that SamplingParams.from_dict
    refuses."""
    params = {} if params is None else params
    if isinstance(params, dict):
        params = SamplingParams.from_dict(params)
    if not isinstance(params, SamplingParams):
        checks.refuse(f"{folder}: sampling_params", params, "SamplingParams or a dict")
    return params
