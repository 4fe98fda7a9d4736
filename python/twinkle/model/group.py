"""A model's state per adapter: its loop, the last batch, what scripts set. No weights."""

from dataclasses import dataclass
from typing import Any

from twinkle import checks
from twinkle.core import core
from twinkle.errors import InvalidError, require
from twinkle.ledger import Ledger
from twinkle.loss import CrossEntropyLoss
from twinkle.metric import LossMetric, TrainMetric
from twinkle.processor import InputProcessor

DEFAULT_WEIGHT_DECAY = 0.01  # optim::make's, where it is left out


@dataclass
class Phase:
    """Training, or evaluation."""

    metrics: list
    together: Any = None  # the Together of its last forward, for calculate_loss and backward


def optimizer_name(optimizer_cls):
    """The engine's name of 'AdamW', torch.optim.AdamW, ... InvalidError: neither a text nor a class
    of torch.optim."""
    if isinstance(optimizer_cls, str):
        return optimizer_cls
    name, what = getattr(optimizer_cls, "__name__", None), checks.short(optimizer_cls)
    if name is None:  # an object, as torch.optim.AdamW(...) makes, has a repr of many lines
        what = f"an object of {type(optimizer_cls).__name__}"
    require(
        name is not None and getattr(optimizer_cls, "__module__", "").startswith("torch.optim"),
        f"model: optimizer_cls is {what}, it must be a name or a class of torch.optim, with its "
        "options beside it: set_optimizer('AdamW', lr=1e-4)",
    )
    return name


class Groups(dict):
    """Groups by their adapters' names. InvalidError: none has the name that is looked up."""

    def __missing__(self, name):
        names = ", ".join(repr(each) for each in self if each) or "none"
        raise InvalidError(
            f"model: there is no adapter {name!r}; there are {names}: pass adapter_name"
        )


class Group(Ledger):
    """One adapter's, or the base model's, side of the training loop. Settings and counters (lr,
    cur_step, ...) are those of `loop`, which `run` replaces where an operation changes it."""

    tenant = None  # the engine's; None: not created yet
    stale = None  # a tenant that this one's has replaced, until it is deleted
    config = None  # LoraConfig, or None for the base model
    has_optimizer = False  # set by the user: it is to be trained
    has_compared = False  # its policy with old_logps
    mode = "train"  # the phase of the last forward, or "eval"

    def __init__(self, name, template):
        super().__init__(name=name, loop=core().Loop(), loss=CrossEntropyLoss())
        self.created = {}  # the fields that an adapter's tenant was made with
        self.template = template  # or a function that makes it when it is first needed
        self.processor = InputProcessor()
        self.train, self.eval = Phase([LossMetric(), TrainMetric()]), Phase([LossMetric()])

    def __getattr__(self, name):
        return getattr(self.loop, name)

    @property
    def num_labels(self):
        """Labels of the adapter's head; 0: it has none."""
        return getattr(self.config, "num_labels", None) or 0

    def with_micro_batch(self, _):
        """The changes of a forward_backward, for `run`: a forward before it does not outlive it."""
        return {"loop": self.loop.with_micro_batch(), "train": Phase(self.train.metrics)}

    def set_gradient_accumulation_steps(self, steps):
        """Micro-batches of one step, from now on; None leaves them. InvalidError: below 1."""
        if steps is not None:
            self.loop = self.loop.with_accumulation(steps)

    def take_settings(self, other):
        """Settings that were made before this group's adapter was added."""
        for name in ("loss", "template", "processor", "train", "eval"):
            setattr(self, name, getattr(other, name))
        self.loop = other.loop.with_accumulation(self.gradient_accumulation_steps)

    def get_template(self):
        """The template, which is made at the first call."""
        if callable(self.template) and not hasattr(self.template, "batch_encode"):
            self.template = self.template()
        return self.template

    def phase(self, is_training):
        """The Phase of training, or of evaluation."""
        return self.train if is_training else self.eval

    def check_metrics(self, is_training, together, loss_kwargs):
        """InvalidError: a metric would refuse the batch or what the loss is called with."""
        gives = together.task.gives
        metrics = [m for m in self.phase(is_training).metrics if m.reads in (None, gives)]
        inputs = together.whole.tensors() if any(m.needs_inputs for m in metrics) else None
        for metric in metrics:
            metric.check(inputs, **loss_kwargs)

    def accumulate_metrics(self, is_training, batch, outputs, predict, loss_kwargs, **kwargs):
        """predict: a function that gives the predictions, for the metrics that need them.
        loss_kwargs: what the loss was called with, which the metrics see, too."""
        metrics = self.phase(is_training).metrics
        if any(m.needs_predictions for m in metrics):
            outputs = {**outputs, "predictions": predict()}
        inputs = batch.tensors() if any(m.needs_inputs for m in metrics) else None
        names = ("lr", "gradient_accumulation_steps", "grad_norm")
        given = loss_kwargs | {name: getattr(self.loop, name) for name in names} | kwargs
        given |= {"step": self.cur_step, "seq_tokens": batch.num_tokens}
        for metric in metrics:
            metric.accumulate(inputs, outputs, **given)
