"""Engine: a model and who works on it."""

import json
import os

from twinkle import checks
from twinkle.core import core
from twinkle.data_format import LoraConfig
from twinkle.engine.tenant import Tenant
from twinkle.errors import refuse_unknown, require
from twinkle.template.template import Template, resolve

_DEFAULT_TARGETS = ["q_proj", "v_proj"]  # as peft for these families


class Engine:
    """One model, and the operations of its tenants.

    model_id: local Hugging Face directory, .gguf file, ms://, hf:// or bare id.
    mixed_precision: 'bf16' (weights and activations) or 'no' (float32); adapters, gradients and
    optimizer states are float32. deterministic: the engine proves at its start that a row of its
    matrix products has the same bits in any company, and InternalError says where it cannot;
    False: no proof, and a tenant's last bits may depend on its neighbours. token_budget: tokens of
    one training batch (None: 4096); larger operations run in several. kv_tokens: tokens that the
    sampler's cache holds (None: 32768). activation_bytes: of activations kept for a backward pass
    (None: 8 GiB; 0: no limit); layers beyond it are computed twice.
    InvalidError: a value that cannot be; NotFoundError: no such model.
    """

    def __init__(
        self, model_id, mixed_precision="bf16", deterministic=True, token_budget=None, **options
    ):
        checks.path("engine: model_id", model_id)
        if mixed_precision not in ("bf16", "no"):
            checks.refuse("engine: mixed_precision", mixed_precision, "'bf16' or 'no'")
        refuse_unknown("engine: Engine", options, ("kv_tokens", "activation_bytes"))
        options["token_budget"] = token_budget
        for name, value in options.items():
            least = 0 if name == "activation_bytes" else 1
            checks.integer(f"engine: {name}", value, least, 2**50, none=True)
        self.model_id = str(model_id)
        # The compiled engine: every operation as a method that takes its tenant's name.
        self.operations = core().Engine(
            resolve(model_id),
            mixed_precision=mixed_precision,
            deterministic=checks.flag("engine: deterministic", deterministic),
            **{name: value for name, value in options.items() if value is not None},
        )
        self._template = None

    def facts(self):
        """What is known of the model: family, directory, config_json, vocab_size, max_positions
        (tokens), num_layers, num_parameters, eos_ids."""
        return self.operations.facts()

    def template(self):
        """The Template of the model's own tokenizer, made when it is first asked for."""
        if self._template is None:
            self._template = Template(self.model_id)
        return self._template

    def tenant(
        self,
        name,
        lora_config=None,
        seed=0,
        weight=1.0,
        *,
        full_parameters=False,
        priority=0,
    ):
        """Creates a tenant and returns it.

        lora_config: a LoraConfig (ours or peft's), a dict of its fields, or a PEFT directory to
        start from. None: the base model as it is, to score and sample with; or, with
        full_parameters=True, the right to train all its weights, which one tenant has at a time,
        while there are no adapters. seed: of initial weights and dropout, from 0 to 2**64 - 1.
        weight: the tenant's share of batches, prompts and samples beside others of its priority,
        0.001 to 1000; priority: higher ones first.
        ConflictError: the name is taken, or full training excludes it; InvalidError: a value that
        cannot be, named.
        """
        checks.text("engine: name", name)
        checks.flag("engine: full_parameters", full_parameters)
        require(
            lora_config is None or not full_parameters,
            "engine: lora_config and full_parameters=True exclude each other: an adapter is "
            "trained, or all weights",
        )
        seed = checks.integer("engine: seed", seed, 0, 2**64 - 1)
        weight = checks.number("engine: weight", weight, least=0.001)
        require(weight <= 1000, f"engine: weight is {weight}, it must be at most 1000")
        priority = checks.integer("engine: priority", priority, -(2**31), 2**31 - 1)
        fields = {"frozen": lora_config is None and not full_parameters}
        if isinstance(lora_config, (str, os.PathLike)):
            fields["directory"] = resolve(lora_config)
        elif lora_config is not None:
            config = LoraConfig.from_any(lora_config)
            values = config.to_dict()
            values["target_modules"] = values["target_modules"] or _DEFAULT_TARGETS
            fields["lora_json"] = json.dumps(values, sort_keys=True)
        self.operations.create(
            tenant=name, seed=seed, weight=weight, priority=priority, **fields
        ).result()
        return Tenant(self, name)
