"""A model's adapters, and the engine's tenants that hold their weights."""

from functools import partial

from twinkle import checks
from twinkle.data_format.lora import warn_of_another_base
from twinkle.engine.arguments import adapter_of
from twinkle.errors import ConflictError, refuse_unknown, require
from twinkle.infra import current_run
from twinkle.logger import get_logger
from twinkle.model.checkpoint import Checkpoints
from twinkle.model.group import Group, Groups, Phase
from twinkle.remote.how import at_once
from twinkle.seeding import stable_seed
from twinkle.template.template import Template

_FROZEN = "frozen"


def frozen_tenant(engine, tenants):
    """The engine's tenant of the model as it is, which `tenants`, a Ledger, knows from the first
    call on as `frozen`. One thread at a time."""
    tenants.settle()
    if tenants.frozen is None:
        tenants.run(engine.create, lambda _: {"frozen": _FROZEN}, tenant=_FROZEN, frozen=True)
    return tenants.frozen


class Adapters(Checkpoints):
    """The part of TransformersModel that makes and removes adapters."""

    @property
    def _groups(self):
        """By name. Adding and removing replace it, so that other threads may read it."""
        return self._tenants.groups

    def _default_template(self):
        """A function that makes the template of the model's own tokenizer. It does not hold the
        model: a cycle would leave the end of the engine, where all ranks meet, to the collector
        of garbage, which comes at another time on each."""
        return partial(Template, self.tokenizer_id)

    def _tenant(self, group, training=True):
        """The engine's tenant of a group; the base model's is made when it is first needed."""
        if group.tenant is not None:
            return group.tenant
        if not training:
            return self.frozen_tenant()
        with self._lock:
            self._tenants.settle()
            group.settle()
            if group.tenant is not None:
                return group.tenant  # another thread was first
            if self._tenants.frozen is not None:  # who trains all weights is alone with the model
                self._tenants.run(self.engine.delete, lambda _: {"frozen": None}, tenant=_FROZEN)
            if not self._value_head:  # a critic is trained whole, always
                get_logger().warning(
                    f"model: all {self.model_info['num_parameters']:,} weights of {self.model_id} "
                    "are trained: add_adapter_to_model first trains an adapter alone"
                )
            created = {"tenant": "full", "seed": current_run().seed}
            group.run(self.engine.create, lambda _: {"tenant": "full"}, **created)
        return group.tenant

    def _count(self, group, operation, change, **fields):
        """Runs an operation, a method of the engine, for a group. change(loop, result): the group's
        loop after it, of the one before."""
        changes = lambda result: {"loop": change(group.loop, result)}  # noqa: E731
        return group.run(operation, changes, tenant=self._tenant(group), **fields)

    def frozen_tenant(self):
        """The engine's tenant of the base model as it is. ConflictError: it is being trained."""
        with self._lock:
            return frozen_tenant(self.engine, self._tenants)

    def tenant_for_sampling(self, adapter_name=None):
        """The engine's tenant of an adapter, or of the base model, to sample with: its name."""
        return self._tenant(self._group(adapter_name), training=False)

    @at_once
    def add_adapter_to_model(
        self, adapter_name, config_or_dir, gradient_accumulation_steps=1, **kwargs
    ):
        """Adds a LoRA adapter: a LoraConfig (ours or peft's), or a PEFT directory or hub id.

        Settings made before the first adapter was added are its own. A directory that says it was
        trained on a model of another name is taken with a warning if its shapes fit. NotFoundError:
        no such directory; InvalidError: a target that matches nothing, a rank below 1, ...;
        ConflictError: the name is taken.
        """
        with self._ranks.alike("its adapter"):
            refuse_unknown("model: add_adapter_to_model", kwargs)
            group = self._new_group(adapter_name, config_or_dir, gradient_accumulation_steps)
        with self._lock:
            self._add(group)
        if directory := group.created.get("directory"):
            warn_of_another_base(directory, self.model_id, self.model_info["directory"])

    def _new_group(self, adapter_name, config_or_dir, gradient_accumulation_steps):
        checks.text("model: adapter_name", adapter_name)
        group = Group(adapter_name, self._default_template())
        group.config, group.created = adapter_of(config_or_dir, self.model_id)
        group.created["seed"] = stable_seed(current_run().seed, "adapter", adapter_name)
        steps = checks.integer("model: gradient_accumulation_steps", gradient_accumulation_steps, 1)
        group.set_gradient_accumulation_steps(steps)
        group.created["tenant"] = group.tenant = f"adapter/{adapter_name}"
        return group

    def _add(self, group):
        self._tenants.settle()
        groups = Groups(self._groups)
        if "" in groups and groups[""].tenant is not None:
            raise ConflictError(
                f"model: all weights of {self.model_id} are being trained, so adapter "
                f"{group.name!r} cannot be added: add it before the first forward_backward, to a "
                "new model"
            )
        if "" in groups:
            group.take_settings(groups.pop(""))
        if group.name in groups:
            raise ConflictError(
                f"model: there is an adapter {group.name!r} already: choose another name, or call "
                f"remove_adapter({group.name!r}) first"
            )
        groups[group.name] = group
        self._tenants.run(self.engine.create, lambda _: {"groups": groups}, **group.created)

    @at_once
    def remove_adapter(self, adapter_name=None):
        """Forgets an adapter and its optimizer's state. InvalidError: there is none of the name, or
        it is the base model."""
        with self._checked("remove_adapter", adapter_name) as group:
            require(group.config is not None, "model: the base model cannot be removed")
        with self._lock:
            self._tenants.settle()
            group = self._group(adapter_name)
            groups = Groups((n, each) for n, each in self._groups.items() if each is not group)
            groups = groups or Groups({"": Group("", self._default_template())})
            self._drop_stale(group)
            self._tenants.run(self.engine.delete, lambda _: {"groups": groups}, tenant=group.tenant)

    @at_once
    def reload_initial_weights(self, adapter_name=None):
        """Weights, optimizer and counters as they were before the first step; settings stay."""
        with self._checked("reload_initial_weights", adapter_name) as group:
            before = group.tenant

        def fresh(tenant, stale):
            loop, train = group.loop.from_the_start(), Phase(group.train.metrics)
            return {"loop": loop, "train": train, "tenant": tenant, "stale": stale}

        if group.created:  # the new one is there before the old one goes
            self._drop_stale(group)
            again = {**group.created, "tenant": f"{before}'"}
            group.run(self.engine.create, lambda _: fresh(again["tenant"], before), **again)
            self._drop_stale(group)
        elif before is not None:  # all weights: made anew when it is first needed
            group.run(self.engine.delete, lambda _: fresh(None, None), tenant=before)

    def _drop_stale(self, group):
        if group.stale is not None:
            group.run(self.engine.delete, lambda _: {"stale": None}, tenant=group.stale)
