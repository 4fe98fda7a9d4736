"""Learning rates of torch.optim.lr_scheduler, for schedules that the engine does not have."""

import inspect

from twinkle import checks
from twinkle.core import core
from twinkle.engine.arguments import is_json
from twinkle.errors import InvalidError

_MOMENTUM = 0.9  # of the optimizer without a model; some schedulers would change it


def with_schedule(loop, scheduler_cls, options):
    """The Loop with the engine's or torch's scheduler, from its beginning.

    scheduler_cls: a name, or a class of torch. InvalidError: another one, or wrong options.
    """
    torchs = _torch_class(scheduler_cls)
    if not isinstance(scheduler_cls, str) and torchs is None:
        must = "a schedule's name, or a class of torch.optim.lr_scheduler"
        checks.refuse("model: scheduler_cls", scheduler_cls, must)
    name = scheduler_cls if isinstance(scheduler_cls, str) else scheduler_cls.__name__
    own = torchs is not None and not torchs.__module__.startswith("torch.optim")
    if torchs is None or (name in core().schedule_names() and not own):
        return loop.with_schedule(name, options)
    kept = {option: value for option, value in options.items() if is_json(value)}
    return loop.with_rate(name, kept, TorchSchedule(torchs, options).lr)


def _torch_class(scheduler_cls):
    """torch's scheduler of a name, or a class that is one; None: neither."""
    from torch.optim import lr_scheduler

    found = scheduler_cls
    if isinstance(found, str):
        found = getattr(lr_scheduler, found, None)
    if inspect.isclass(found) and issubclass(found, lr_scheduler.LRScheduler):
        return found if found is not lr_scheduler.LRScheduler else None
    return None


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
                f"model: {self._class.__name__} changes the momentum, which the engine keeps: pass "
                "cycle_momentum=False"
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
