"""A model's adapters, and the engine's tenants that hold their weights."""

import dataclasses

from twinkle.data_format import LoraConfig
from twinkle.data_format.lora import warn_of_another_base
from twinkle.errors import refuse_unknown, require
from twinkle.infra import current_run
from twinkle.model.checkpoint import Checkpoints
from twinkle.model.group import Group
from twinkle.seeding import stable_seed
from twinkle.template.template import Template, resolve


class Adapters(Checkpoints):
    """The part of TransformersModel that makes and removes adapters."""

    def _default_template(self):
        return Template(self.tokenizer_id)

    def _tenant(self, group, training=True):
        """The engine's tenant of a group; the base model's is made when it is first needed."""
        if group.tenant is not None:
            return group.tenant
        if training:
            if self._frozen:  # who trains all weights is alone with the model
                self.engine.delete(tenant="frozen").result()
                self._frozen = False
            self.engine.create(tenant="full", seed=current_run().seed).result()
            group.tenant = "full"
            return "full"
        return self.frozen_tenant()

    def frozen_tenant(self):
        """The engine's tenant of the base model as it is. ConflictError: it is being trained."""
        if not self._frozen:
            self.engine.create(tenant="frozen", frozen=True).result()
            self._frozen = True
        return "frozen"

    def tenant_for_sampling(self, adapter_name=None):
        """The engine's tenant of an adapter, or of the base model, to sample with: its name."""
        return self._tenant(self._group(adapter_name), training=False)

    def add_adapter_to_model(
        self, adapter_name, config_or_dir, gradient_accumulation_steps=1, **kwargs
    ):
        """Adds a LoRA adapter: a LoraConfig (ours or peft's), or a PEFT directory or hub id.

        Settings made before the first adapter was added are its own. A directory that says it was
        trained on a model of another name is taken with a warning if its shapes fit. NotFoundError:
        no such directory; InvalidError: a target that matches nothing, a rank below 1, ...;
        ConflictError: the name is taken.
        """
        refuse_unknown("model: add_adapter_to_model", kwargs)
        require(
            isinstance(adapter_name, str) and adapter_name != "",
            f"model: adapter_name is {adapter_name!r}, it must be a text that is not empty",
        )
        directory = ""
        if isinstance(config_or_dir, str) or hasattr(config_or_dir, "__fspath__"):
            directory = resolve(config_or_dir)
        config = LoraConfig.from_any(directory or config_or_dir)
        if config.target_modules is None:  # as peft does for these families
            config = dataclasses.replace(config, target_modules=["q_proj", "v_proj"])
        group = Group(adapter_name, self._default_template)
        group.set_gradient_accumulation_steps(gradient_accumulation_steps)
        tenant = f"adapter/{adapter_name}"
        group.created = {
            "lora_json": "" if directory else config.to_json(),
            "directory": directory,
            "seed": stable_seed(current_run().seed, "adapter", adapter_name),
        }
        self.engine.create(tenant=tenant, **group.created).result()
        if directory:
            warn_of_another_base(directory, self.model_id, self.facts["directory"])
        group.tenant, group.config = tenant, config
        base = self._groups.get("")
        if base is not None and base.tenant is None:
            group.take_settings(base)
            del self._groups[""]
        self._groups[adapter_name] = group

    def remove_adapter(self, adapter_name=None):
        """Forgets an adapter and its optimizer's state. InvalidError: there is none of the name, or
        it is the base model."""
        group = self._group(adapter_name)
        require(group.config is not None, "model: the base model cannot be removed")
        self.engine.delete(tenant=group.tenant).result()
        del self._groups[group.name]
        if not self._groups:
            self._groups[""] = Group("", self._default_template)

    def reload_initial_weights(self, adapter_name=None):
        """Weights, optimizer and counters as they were before the first step; settings stay."""
        group = self._group(adapter_name)
        before, again = group.tenant, None
        if group.created:
            again = f"{before}'"  # it is there before the old one goes
            self.engine.create(tenant=again, **group.created).result()
        if before is not None:
            self.engine.delete(tenant=before).result()
        group.tenant = again  # all weights: made anew when it is first needed
        group.set_state({})
        group.train.forget()
        group.grad_norm = group.clipped_norm = None
