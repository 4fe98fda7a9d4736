"""A model's settings before and during training, and its reports."""

import inspect
import json
from contextlib import contextmanager

from twinkle import checks, loss, metric, patch, processor, template
from twinkle.core import core
from twinkle.errors import NotAvailableError, refuse_unknown
from twinkle.loss.base import FunctionLoss, Loss, check_usable, engine_loss
from twinkle.model.arguments import refuse_grad_scaler
from twinkle.model.base import TwinkleModel
from twinkle.model.group import DEFAULT_WEIGHT_DECAY, optimizer_name
from twinkle.model.schedule import with_schedule
from twinkle.plugin import construct_class
from twinkle.remote.how import at_once


def _needed(cls):
    """Names of the arguments that a class of metrics cannot be made without."""
    if not (isinstance(cls, type) and issubclass(cls, metric.Metric)):
        return set()
    parameters = inspect.signature(cls).parameters.values()
    return {p.name for p in parameters if p.default is p.empty}


class Settings(TwinkleModel):
    """The half of TransformersModel that never waits for the engine."""

    _value_head = False  # in place of the vocabulary's
    _without_adapters = "none, all weights train"  # for repr

    def __repr__(self):
        adapters = ", ".join(name for name in self._groups if name) or self._without_adapters
        return (
            f"{type(self).__name__}({self.model_id!r}: {self.model_info['family']}, "
            f"{self.model_info['num_parameters']:,} parameters, mixed_precision "
            f"{self.mixed_precision!r}, on {self._device}; adapters: {adapters})"
        )

    def _group(self, adapter_name=None):
        groups = self._groups  # adding and removing replace them, in other threads, too
        if adapter_name is None:
            adapter_name = next(iter(groups)) if len(groups) == 1 else "default"
        is_name = isinstance(adapter_name, str)
        group = groups[adapter_name] if is_name else groups.__missing__(adapter_name)
        group.settle()
        return group

    @contextmanager
    def _checked(self, call, adapter_name):
        """In its block every rank checks a call, before any does it; gives the adapter's group."""
        with self._ranks.alike(f"its {call}"):
            yield self._group(adapter_name)

    @property
    def optimizer_group(self):
        """{adapter_name: what is counted and set of it}, of the base model under '': cur_step
        (micro-batches), iters (steps), gradient_accumulation_steps, lr, grad_norm, optimizer and
        lr_scheduler (their names), template, processor. InvalidError: there is none of the name."""
        return self._groups

    def _lazy_wrap_model(self):
        """Does nothing: the ranks of a mesh share a model from its making on."""

    def register_mm_forward_hook(self, *args, **kwargs):
        """Raises NotAvailableError: there is no multimodal model to hook into."""
        raise NotAvailableError(
            "model: register_mm_forward_hook needs multimodal models, which are not there yet"
        )

    def merge_adapter(self, *args, **kwargs):
        """Raises NotAvailableError: all adapters share the base in memory. `twinkle export` and
        `twinkle merge` write a merged copy."""
        raise NotAvailableError(
            "model: merge_adapter would change the base that all adapters share: save() the "
            "adapter, then 'twinkle export FOLDER' or 'twinkle merge MODEL FOLDER OUTPUT' writes a "
            "merged copy"
        )

    def unmerge_adapter(self, *args, **kwargs):
        """Raises NotAvailableError: no adapter is merged in memory, so the base has its own
        bits."""
        raise NotAvailableError(
            "model: unmerge_adapter has nothing to take off: no adapter is merged in memory, and "
            "'twinkle merge' leaves the base's files as they are; forward_only(disable_lora=True) "
            "is the model without its adapter"
        )

    # ---- settings

    @at_once
    def set_loss(self, loss_cls, adapter_name=None, **kwargs):
        """A Loss, a subclass, its name or the short one of twinkle.loss.torch_loss_mapping
        ('grpo'), a plugin id, or a function (inputs, outputs, **kwargs).
        InvalidError: another thing, or kwargs that it does not take; the loss before then stays."""
        if callable(loss_cls) and not isinstance(loss_cls, (type, Loss)):
            refuse_unknown("model: set_loss of a function", kwargs)
            loss_cls = FunctionLoss(loss_cls)
        if isinstance(loss_cls, str):
            loss_cls = loss.torch_loss_mapping.get(loss_cls.lower(), loss_cls)
        made = construct_class(loss_cls, Loss, loss, **kwargs)
        check_usable(made, self._value_head)
        if engine_loss(made) is not None:
            core().check_loss(engine_loss(made), json.dumps(made.engine_options()))
        self._group(adapter_name).loss = made

    @at_once
    def set_optimizer(self, optimizer_cls="AdamW", adapter_name=None, **kwargs):
        """optimizer_cls: 'AdamW', 'Adam', 'SGD', or torch.optim's class. kwargs as in torch, but of
        each the lr is 1e-5 and weight_decay 0.01 where they are left out, and norms and biases
        never decay. InvalidError: another optimizer or option; the one before then stays."""
        group = self._group(adapter_name)
        group.loop = group.loop.with_optimizer(optimizer_name(optimizer_cls), kwargs)
        group.has_optimizer = True

    @at_once
    def set_lr_scheduler(self, scheduler_cls, adapter_name=None, **kwargs):
        """scheduler_cls: a name such as 'CosineWarmupScheduler', or the name or class of one of
        torch's schedulers; kwargs as in torch; it starts anew. Refused: one that follows a metric.
        """
        group = self._group(adapter_name)
        group.loop = with_schedule(group.loop, scheduler_cls, kwargs)

    @at_once
    def set_template(self, template_cls, adapter_name=None, **kwargs):
        """A Template, a subclass, its name or a plugin id; model_id defaults to the model's.
        InvalidError: another thing, or kwargs that it does not take; the one before then stays."""
        if not isinstance(template_cls, template.Template):
            kwargs.setdefault("model_id", self.tokenizer_id)
        made = construct_class(template_cls, template.Template, template, **kwargs)
        self._group(adapter_name).template = made

    @at_once
    def set_processor(self, processor_cls, adapter_name=None, **kwargs):
        """An InputProcessor, a subclass, its name or a plugin id."""
        made = construct_class(processor_cls, processor.InputProcessor, processor, **kwargs)
        self._group(adapter_name).processor = made

    @at_once
    def add_metric(self, metric_cls, is_training=None, adapter_name=None, **kwargs):
        """A Metric, a subclass, its name or a plugin id; is_training None: for both phases.
        InvalidError: another thing, kwargs that it does not take, is_training that is none of True,
        False and None."""
        group = self._group(adapter_name)
        if is_training is not None:
            is_training = checks.flag("model: is_training", is_training)
        # A script's own class may need what one here does not: it sees the rows of all ranks.
        needed = _needed(metric_cls) - set(kwargs)
        unused = dict.fromkeys({"device_mesh", "process_group"} & needed)
        for training in (True, False) if is_training is None else (is_training,):
            made = construct_class(metric_cls, metric.Metric, metric, **unused, **kwargs)
            made.sees_all = True
            group.phase(training).metrics.append(made)

    @at_once
    def apply_patch(self, patch_cls, adapter_name=None, **kwargs):
        """A Patch, a subclass, its name or a plugin id, applied to model.model."""
        del adapter_name
        construct_class(patch_cls, patch.Patch, patch, **kwargs)(self.model)

    @at_once
    def set_grad_scaler(self, adapter_name=None, **kwargs):
        """Gradients are scaled with mixed_precision='fp16' alone, which this version refuses."""
        del adapter_name, kwargs
        refuse_grad_scaler("set_grad_scaler")

    # ---- reports

    @at_once
    def get_peft_config_dict(self, adapter_name=None):
        """The fields of an adapter's LoraConfig, as peft names them; None of the base model."""
        config = self._group(adapter_name).config
        return None if config is None else config.to_dict()

    @at_once
    def calculate_metric(self, is_training=True, adapter_name=None):
        """A dict of numbers since the last call: loss, grad_norm, lr, num_tokens, iters, ...
        InvalidError: is_training is neither True nor False."""
        out, is_training = {}, checks.flag("model: is_training", is_training)
        for one in self._group(adapter_name).phase(is_training).metrics:
            out.update(one.calculate())
            one.reset()
        return out

    @at_once
    def get_train_configs(self, adapter_name=None):
        """The settings of an adapter, or of the base model, as text."""
        group, info, lora = self._group(adapter_name), self.model_info, {}
        if group.config is not None:
            shown = ("r", "lora_alpha", "lora_dropout", "target_modules")
            lora["lora"] = ", ".join(f"{name} {getattr(group.config, name)}" for name in shown)
        decay = group.options.get("weight_decay", DEFAULT_WEIGHT_DECAY)
        options = {**group.options, "weight_decay": decay}
        options = ", ".join(f"{key} {value}" for key, value in options.items())
        size = f"{info['num_parameters']:,} parameters"
        lines = {
            "model": f"{self.model_id} ({info['family']}, {size}, "
            f"mixed_precision {self.mixed_precision})",
            "adapter": group.name or "none, all weights are trained",
            **lora,
            "loss": f"{type(group.loss).__name__} {group.loss.engine_options() or ''}",
            "optimizer": f"{group.optimizer} ({options})",
            "lr_scheduler": f"{group.lr_scheduler or 'constant'} {group.schedule_options or ''}",
            "gradient_accumulation_steps": group.gradient_accumulation_steps,
        }
        return "\n".join(f"{name}: {value}".rstrip() for name, value in lines.items())
