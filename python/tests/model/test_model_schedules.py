"""Schedules of torch that the engine lacks: the rates equal torch's own, step by step."""

import pytest
import torch
from features import A

from twinkle.errors import InvalidError
from twinkle.model import TransformersModel


def torchs_rates(make, steps, lr=0.5):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=lr)
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def our_rates(model, steps):
    for _ in range(steps):
        model.forward_backward(inputs=[A])
        model.clip_grad_and_step()
    return [call[1] for call in model.engine.calls if call[0] == "step"]


class Halves(torch.optim.lr_scheduler.LRScheduler):
    """A user's own, under no name of the engine's."""

    def get_lr(self):
        return [lr * 0.5**self.last_epoch for lr in self.base_lrs]


class LinearLR(Halves):
    """A user's own, under a name that the engine has, too."""


@pytest.mark.parametrize(
    ("scheduler", "options"),
    [
        ("MultiStepLR", {"milestones": [2, 5], "gamma": 0.1}),
        ("PolynomialLR", {"total_iters": 6, "power": 2.0}),
        ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}),
        ("OneCycleLR", {"max_lr": 0.3, "total_steps": 9, "cycle_momentum": False}),
        ("LambdaLR", {"lr_lambda": lambda step: 1 / (step + 1)}),
        (torch.optim.lr_scheduler.MultiplicativeLR, {"lr_lambda": lambda step: 0.9}),
        (Halves, {}),
        (LinearLR, {}),
    ],
)
def test_rates_are_those_of_torch(model, scheduler, options):
    model.set_optimizer("AdamW", lr=0.5)
    model.set_lr_scheduler(scheduler, **options)
    kind = scheduler
    if isinstance(kind, str):
        kind = getattr(torch.optim.lr_scheduler, kind)
    expected = torchs_rates(lambda optimizer: kind(optimizer, **options), 8)
    assert our_rates(model, 8) == pytest.approx(expected, abs=1e-12)
    assert len(set(expected)) > 2


# The fake core's words are our own; these are the compiled one's.
@pytest.mark.parametrize(
    ("scheduler", "options"),
    [
        ("MultiStepLR", {"milestones": [1], "gamma": 0.5}),
        (torch.optim.lr_scheduler.MultiStepLR, {"milestones": [1], "gamma": 0.5}),
        ("LambdaLR", {"lr_lambda": lambda step: 0.5**step}),
        ("PolynomialLR", {"total_iters": 2}),
        ("CosineAnnealingWarmRestarts", {"T_0": 2}),
        ("OneCycleLR", {"max_lr": 0.5, "total_steps": 9, "cycle_momentum": False}),
        ("StepLR", {"step_size": 1, "gamma": 0.5}),  # the engine has this one
    ],
)
def test_the_compiled_engine_trains_with_them(engine_built, tiny_llama_dir, scheduler, options):
    model = TransformersModel(model_id=tiny_llama_dir)
    model.set_optimizer("SGD", lr=0.5)
    model.set_lr_scheduler(scheduler, **options)
    group = model._group()
    before = group.lr
    model.forward_backward(inputs=[A])
    model.clip_grad_and_step()
    assert group.iters == 1 and group.lr != before
    with pytest.raises(InvalidError, match="unknown lr schedule 'Up', known are constant"):
        model.set_lr_scheduler("Up")


def test_a_resumed_schedule_goes_on_where_it_was(model, tmp_path):
    model.set_optimizer("AdamW", lr=0.5)
    model.set_lr_scheduler("MultiStepLR", milestones=[1, 3])
    rates = our_rates(model, 2)
    path = model.save("a", output_dir=str(tmp_path), save_optimizer=True)
    model.set_lr_scheduler("MultiStepLR", milestones=[1, 3])
    model.resume_from_checkpoint(path)
    assert our_rates(model, 3) == pytest.approx([*rates, 0.05, 0.005, 0.005])


@pytest.mark.parametrize(
    ("scheduler", "options", "text"),
    [
        ("ReduceLROnPlateau", {}, "ReduceLROnPlateau follows a metric"),
        ("OneCycleLR", {"max_lr": 0.3, "total_steps": 9}, "changes the momentum.*cycle_momentum="),
        ("MultiStepLR", {}, "MultiStepLR: .*missing 1 required"),
        ("MultiStepLR", {"milestones": [1], "colour": 2}, "MultiStepLR: .*colour"),
        ("LRScheduler", {}, "unknown lr schedule 'LRScheduler'"),
        ("Optimizer", {}, "unknown lr schedule 'Optimizer'"),
        (dict, {}, "must be a schedule's name, or a class of torch.optim.lr_scheduler"),
        (None, {}, "scheduler_cls is None"),
    ],
)
def test_what_cannot_be_followed_is_named(model, scheduler, options, text):
    before = model.get_train_configs()
    with pytest.raises(InvalidError, match=text):
        model.set_lr_scheduler(scheduler, **options)
    assert model.get_train_configs() == before
