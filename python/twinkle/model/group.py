"""A model's state per adapter: settings, counters, the last batch. No weights."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

from twinkle import checks
from twinkle.core import core
from twinkle.errors import InvalidError, require
from twinkle.ledger import Ledger
from twinkle.loss import CrossEntropyLoss
from twinkle.metric import LossMetric, TrainMetric
from twinkle.model.schedule import make_schedule
from twinkle.processor import InputProcessor

DEFAULT_LR = 1e-5
DEFAULT_WEIGHT_DECAY = 0.01  # of optim::make, where it is left out
STATE_VERSION = 2  # of state(), the only one that is read
_COUNTERS = ("cur_step", "accumulated", "iters", "lr_step")


@dataclass
class Status:
    """The last forward of a phase, for calculate_loss and backward."""

    together: Any = None  # the batch of all ranks
    outputs: dict | None = None  # of all of it
    disable_lora: bool = False  # the base model scored the batch
    loss_kwargs: dict | None = None
    task: Any = None  # what the forward was asked for
    loss: Any = None  # that calculate_loss took
    metrics: list = field(default_factory=list)

    def forgotten(self):
        """Without the batch and what was computed of it; the metrics are the same."""
        return replace(self, together=None, outputs=None, loss_kwargs=None)


def optimizer_name(optimizer_cls):
    """The engine's name of 'AdamW', torch.optim.AdamW, ... InvalidError: neither a text nor a class
    of torch.optim."""
    if isinstance(optimizer_cls, str):
        return optimizer_cls
    name = getattr(optimizer_cls, "__name__", None)
    module = getattr(optimizer_cls, "__module__", "")
    if name is None or not module.startswith("torch.optim"):
        what = checks.short(optimizer_cls)
        if name is None:  # an object, as torch.optim.AdamW(...) makes, has a repr of many lines
            what = f"an object of {type(optimizer_cls).__name__}"
        raise InvalidError(
            f"model: optimizer_cls is {what}, it must be a name or a class of torch.optim, with "
            "its options beside it: set_optimizer('AdamW', lr=1e-4)"
        )
    return name


def as_json(what, options):
    """Options as JSON text. InvalidError: a value that is not JSON, as NaN and infinity are not."""
    try:
        return json.dumps(options, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        pass
    for name, value in options.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            checks.refuse(f"{what}: {name}", value, "a finite number, a text, True or False")
    raise InvalidError(f"{what}: the options {checks.short(options)} are not JSON")


def check_options(optimizer, options):
    """InvalidError: what the engine would refuse of an optimizer's name and options; a value that
    is not JSON; None, which it takes for an absent option."""
    text = as_json("model: optimizer", options)
    for name in ("lr", "betas", "eps", "weight_decay", "momentum"):
        if name in options and options[name] is None:
            checks.refuse(f"model: optimizer: {name}", None, "a number, or left out")
    core().check_optimizer(optimizer, text)


def check_accumulation(steps, none=False):
    """Micro-batches of one step; None only with `none`. InvalidError: below 1."""
    return checks.integer("model: gradient_accumulation_steps", steps, least=1, none=none)


def _json_part(options):
    """The options that JSON keeps, as it gives them back: all but a schedule's functions."""
    kept = {}
    for name, value in options.items():
        try:
            kept[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return kept


class Groups(dict):
    """Groups by their adapters' names. InvalidError: none has the name that is looked up."""

    def __missing__(self, name):
        names = ", ".join(repr(each) for each in self if each) or "none"
        raise InvalidError(
            f"model: there is no adapter {name!r}; there are {names}: pass adapter_name"
        )


class Group(Ledger):
    """One adapter's, or the base model's, side of the training loop. `run` does what changes the
    counters."""

    def __init__(self, name, template):
        super().__init__()
        self.name = name
        self.tenant = None  # of the engine; None: not created yet
        self.config = None  # LoraConfig, or None for the base model
        self.created = {}  # what an adapter's tenant was made with
        self.gradient_accumulation_steps = 1
        self.loss = CrossEntropyLoss()
        self.are_of_rows = {}  # the loss's arguments, as calls of several ranks have shown
        self.optimizer, self.options = "AdamW", {"lr": DEFAULT_LR}
        self.scheduler, self.scheduler_options, self.schedule = None, {}, None
        self.template = template  # or a function that makes it when it is first needed
        self.processor = InputProcessor()
        self.train = Status(metrics=[LossMetric(), TrainMetric()])
        self.eval = Status(metrics=[LossMetric()])
        self.mode = "train"
        self.cur_step = 0  # micro-batches seen
        self.accumulated = 0  # of these, since the last step
        self.iters = 0  # optimizer steps taken
        self.lr_step = 0  # of the schedule
        self.just_stepped = False
        self.has_optimizer = False  # set by the user: it is to be trained
        self.has_compared = False  # its policy with old_logps
        self.grad_norm = None
        self.clipped_norm = None  # of clip_grad_norm since the last backward
        self.stale = None  # a tenant that this one's has replaced, until it is deleted

    def set_optimizer(self, optimizer_cls, options):
        """A name or a class of torch.optim. InvalidError: unknown, or its options are; the one
        before then stays."""
        name = optimizer_name(optimizer_cls)
        options = {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}
        options.setdefault("lr", DEFAULT_LR)
        check_options(name, options)
        self.optimizer, self.options, self.has_optimizer = name, options, True

    # ---- what an operation changes, for `run`

    def with_micro_batch(self, result):
        """After forward_backward, which a forward before it does not outlive."""
        del result
        return {
            "cur_step": self.cur_step + 1,
            "accumulated": self.accumulated + 1,
            "just_stepped": False,
            "clipped_norm": None,
            "train": self.train.forgotten(),
        }

    def with_step(self, result, options, schedule):
        """After a step with these options, by which the schedule moves `schedule` steps on."""
        norm = result.get("grad_norm", self.grad_norm)
        return {
            "options": options,
            "accumulated": 0,
            "just_stepped": True,
            "iters": self.iters + 1,
            "lr_step": self.lr_step + schedule,
            # clip_grad_norm has given the norm before it clipped
            "grad_norm": norm if self.clipped_norm is None else self.clipped_norm,
        }

    def set_scheduler(self, scheduler_cls, options):
        """A schedule by name or class, from its beginning. InvalidError: as make_schedule."""
        name, self.schedule = make_schedule(scheduler_cls, as_json, options)
        self.scheduler, self.scheduler_options, self.lr_step = name, dict(options), 0

    @property
    def lr_scheduler(self):
        """The schedule's name; None: a constant rate."""
        return self.scheduler

    @property
    def lr(self):
        """The learning rate of the next step."""
        if self.schedule is None:
            return self.options["lr"]
        return self.schedule.lr(self.options["lr"], self.lr_step)

    def set_gradient_accumulation_steps(self, steps):
        """Micro-batches of one step, from now on. InvalidError: below 1."""
        self.gradient_accumulation_steps = check_accumulation(steps)

    @property
    def at_boundary(self):
        """Whether as many micro-batches are accumulated as one step takes."""
        return self.accumulated >= self.gradient_accumulation_steps

    def take_settings(self, other):
        """Settings that were made before this group's adapter was added."""
        for name in ("loss", "optimizer", "options", "scheduler", "scheduler_options", "schedule",
                     "template", "processor", "train", "eval"):  # fmt: skip
            setattr(self, name, getattr(other, name))

    def get_template(self):
        """The template, which is made at the first call."""
        if callable(self.template) and not hasattr(self.template, "batch_encode"):
            self.template = self.template()
        return self.template

    def status(self, is_training):
        """The Status of training, or of evaluation."""
        return self.train if is_training else self.eval

    def check_metrics(self, is_training, batch, task, loss_kwargs):
        """InvalidError: a metric would refuse the batch or what the loss is called with."""
        metrics = [m for m in self.status(is_training).metrics if m.reads in (None, task.gives)]
        inputs = batch.tensors() if any(m.needs_inputs for m in metrics) else None
        for metric in metrics:
            metric.check(inputs, **loss_kwargs)

    def accumulate_metrics(self, is_training, batch, outputs, predict, loss_kwargs, **kwargs):
        """predict: a function that gives the predictions, for the metrics that need them.
        loss_kwargs: what the loss was called with, which the metrics see, too."""
        status = self.status(is_training)
        if any(m.needs_predictions for m in status.metrics):
            outputs = {**outputs, "predictions": predict()}
        inputs = batch.tensors() if any(m.needs_inputs for m in status.metrics) else None
        given = {
            **loss_kwargs,
            "lr": self.lr,
            "step": self.cur_step,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "grad_norm": self.grad_norm,
            "seq_tokens": batch.num_tokens,
            **kwargs,
        }
        for metric in status.metrics:
            metric.accumulate(inputs, outputs, **given)

    def state(self, consumed_train_samples):
        """Its state for trainer_state.json."""
        return {
            "checkpoint_version": STATE_VERSION,
            "cur_step": self.cur_step,
            "accumulated": self.accumulated,
            "iters": self.iters,
            "lr_step": self.lr_step,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "consumed_train_samples": consumed_train_samples,
            "optimizer": self.optimizer,
            "options": self.options,
            "scheduler": self.scheduler,
            "scheduler_options": _json_part(self.scheduler_options),
        }

    def check_state(self, state):
        """InvalidError: a state() of another optimizer or schedule, whose moments and steps would
        mean nothing to this one, or of a schedule of other arguments; options that the optimizer
        does not take. A checkpoint without a loop's state, {}, passes."""
        if not state:
            return
        setters = {
            "optimizer": "set_optimizer",
            "scheduler": "set_lr_scheduler",
            "scheduler_options": "set_lr_scheduler",
        }
        ours = self.state(0)
        for name, setter in setters.items():
            saved = state.get(name)
            require(
                saved == ours[name],
                f"model: {name} is {ours[name]!r}, but the checkpoint was saved with {saved!r}: "
                f"call {setter} as for the saved run before, or load weights alone "
                "(resume_only_model=True, or load_optimizer=False)",
            )
        options = checks.mapping("model: options of the checkpoint", state.get("options"))
        check_options(self.optimizer, options)

    def with_state(self, state):
        """With what state() gave, and check_state took: the optimizer's options, which stay where
        they are absent, and the counters, which are 0 then."""
        options = state.get("options", self.options)
        return {
            "options": {**options, "lr": options.get("lr", DEFAULT_LR)},
            **{name: int(state.get(name, 0)) for name in _COUNTERS},
            "just_stepped": False,
            "clipped_norm": None,
        }
