"""Learning rates of torch.optim.lr_scheduler, for schedules that the engine does not have."""

import inspect

from twinkle import checks
from twinkle.core import core
from twinkle.errors import InvalidError

_MOMENTUM = 0.9  # the optimizer's without a model; some schedulers would change it


def with_schedule(loop, scheduler_cls, options):
    """The Loop with the engine's or torch's scheduler, from its beginning.

    scheduler_cls: a name, or a class of torch. InvalidError: another one, or wrong options.
    """
    from torch.optim import lr_scheduler

    name, base = scheduler_cls, lr_scheduler.LRScheduler
    found = getattr(lr_scheduler, name, None) if isinstance(name, str) else name
    is_torchs = inspect.isclass(found) and issubclass(found, base) and found is not base
    if not isinstance(name, str):
        if not is_torchs:
            must = "a schedule's name, or a class of torch.optim.lr_scheduler"
            checks.refuse("model: scheduler_cls", scheduler_cls, must)
        name = found.__name__
    own = is_torchs and not found.__module__.startswith("torch.optim")
    if not is_torchs or (name in core().schedule_names() and not own):
        return loop.with_schedule(name, options)
    kept = {option: value for option, value in options.items() if core().is_json(value)}
    return loop.with_rate(name, kept, TorchSchedule(found, options).lr)


class TorchSchedule:
    """A scheduler of torch, run on an optimizer without a model; steps are counted from 0.
    InvalidError: one that follows a metric, options that its constructor refuses; one that changes
    the momentum: here, or in lr of the first step that does."""

    def __init__(self, scheduler_cls, options):
        self._class, self._options = scheduler_cls, dict(options)
        self._base_lr, self._rates, self._scheduler = None, [], None
        if "metrics" in inspect.signature(scheduler_cls.step).parameters:
            raise InvalidError(
                f"model: {scheduler_cls.__name__} follows a metric, and lr_step() gives it none: "
                "change the rate by step(optim_params={'lr': ...})"
            )
        self.lr(1.0, 0)

    def lr(self, base_lr, step):
        """The rate of optimizer step `step`, which counts from 0."""
        if base_lr != self._base_lr:
            self._start(base_lr)
        while len(self._rates) <= step:
            self._optimizer.step()  # else torch warns of the order
            self._scheduler.step()
            self._note()
        return self._rates[step]

    def _note(self):
        (group,) = self._optimizer.param_groups
        if group["momentum"] != _MOMENTUM:
            raise InvalidError(
                f"model: {self._class.__name__} changes the momentum: pass cycle_momentum=False"
            )
        self._rates.append(float(group["lr"]))

    def _start(self, base_lr):
        import torch

        weight = torch.nn.Parameter(torch.zeros(1))
        self._optimizer = torch.optim.SGD([weight], lr=base_lr, momentum=_MOMENTUM)
        try:
            self._scheduler = self._class(self._optimizer, **self._options)
        except Exception as error:  # whatever torch says of wrong options
            raise InvalidError(f"model: {self._class.__name__}: {error}") from error
        self._base_lr, self._rates = base_lr, []
        self._note()
