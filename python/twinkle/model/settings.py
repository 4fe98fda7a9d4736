"""A model's settings before and during training, and its reports."""

import json

import twinkle.loss
import twinkle.metric
import twinkle.patch
import twinkle.processor
import twinkle.template
from twinkle import checks
from twinkle.core import core
from twinkle.errors import NotAvailableError, refuse_unknown
from twinkle.loss.base import FunctionLoss, Loss, check_usable, engine_loss
from twinkle.model.arguments import refuse_grad_scaler
from twinkle.model.base import TwinkleModel
from twinkle.model.group import DEFAULT_WEIGHT_DECAY, optimizer_name
from twinkle.model.schedule import with_schedule
from twinkle.plugin import construct_class
from twinkle.remote.how import at_once


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
        groups = self._groups  # which adding and removing replace, in other threads, too
        if adapter_name is None:
            adapter_name = next(iter(groups)) if len(groups) == 1 else "default"
        is_name = isinstance(adapter_name, str)
        group = groups[adapter_name] if is_name else groups.__missing__(adapter_name)
        group.settle()
        return group

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
            "model: register_mm_forward_hook needs multimodal models, which this version does not "
            "have"
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
            loss_cls = twinkle.loss.torch_loss_mapping.get(loss_cls.lower(), loss_cls)
        loss = construct_class(loss_cls, Loss, twinkle.loss, **kwargs)
        check_usable(loss, self._value_head)
        if engine_loss(loss) is not None:
            core().check_loss(engine_loss(loss), json.dumps(loss.engine_options()))
        self._group(adapter_name).loss = loss

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
        if not isinstance(template_cls, twinkle.template.Template):
            kwargs.setdefault("model_id", self.tokenizer_id)
        self._group(adapter_name).template = construct_class(
            template_cls, twinkle.template.Template, twinkle.template, **kwargs
        )

    @at_once
    def set_processor(self, processor_cls, adapter_name=None, **kwargs):
        """An InputProcessor, a subclass, its name or a plugin id."""
        self._group(adapter_name).processor = construct_class(
            processor_cls, twinkle.processor.InputProcessor, twinkle.processor, **kwargs
        )

    @at_once
    def add_metric(self, metric_cls, is_training=None, adapter_name=None, **kwargs):
        """A Metric, a subclass, its name or a plugin id; is_training None: for both phases.
        InvalidError: another thing, kwargs that it does not take, is_training that is none of True,
        False and None."""
        group = self._group(adapter_name)
        if is_training is not None:
            is_training = checks.flag("model: is_training", is_training)
        for training in (True, False):
            if is_training in (None, training):
                metric = construct_class(
                    metric_cls, twinkle.metric.Metric, twinkle.metric, **kwargs
                )
                metric.sees_all = True
                group.status(training).metrics.append(metric)

    @at_once
    def apply_patch(self, patch_cls, adapter_name=None, **kwargs):
        """A Patch, a subclass, its name or a plugin id, applied to model.model."""
        del adapter_name
        patch = construct_class(patch_cls, twinkle.patch.Patch, twinkle.patch, **kwargs)
        patch(self.model)

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
        for metric in self._group(adapter_name).status(is_training).metrics:
            out.update(metric.calculate())
            metric.reset()
        return out

    @at_once
    def get_train_configs(self, adapter_name=None):
        """The settings of an adapter, or of the base model, as text."""
        group = self._group(adapter_name)
        lines = [
            f"model: {self.model_id} ({self.model_info['family']}, "
            f"{self.model_info['num_parameters']:,} parameters, "
            f"mixed_precision {self.mixed_precision})",
            f"adapter: {group.name or 'none, all weights are trained'}",
        ]
        if group.config is not None:
            c = group.config
            lines.append(
                f"lora: r {c.r}, lora_alpha {c.lora_alpha}, lora_dropout {c.lora_dropout}, "
                f"target_modules {c.target_modules}"
            )
        options = group.options
        options.setdefault("weight_decay", DEFAULT_WEIGHT_DECAY)
        options = ", ".join(f"{key} {value}" for key, value in options.items())
        lines += [
            f"loss: {type(group.loss).__name__} {group.loss.engine_options() or ''}",
            f"optimizer: {group.optimizer} ({options})",
            f"lr_scheduler: {group.lr_scheduler or 'constant'} {group.schedule_options or ''}",
            f"gradient_accumulation_steps: {group.gradient_accumulation_steps}",
        ]
        return "\n".join(line.rstrip() for line in lines)
