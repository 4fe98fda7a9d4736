"""A resumed run takes more than weights from a checkpoint, and refuses some."""

import json
from pathlib import Path

import pytest
import torch
from features import A, drawn

from twinkle import InvalidError, LoraConfig
from twinkle.model import TransformersModel

BATCH = drawn([7, 9])


def make(directory, lr=1e-2, dropout=0.1, **schedule):
    model = TransformersModel(model_id=directory)
    config = LoraConfig(r=4, lora_dropout=dropout, target_modules="all-linear")
    model.add_adapter_to_model("a", config)
    model.set_optimizer("AdamW", lr=lr)
    if schedule:
        model.set_lr_scheduler("LinearLR", **schedule)
    return model


def train(model, options):
    """A step for each entry, which is its optim_params."""
    for params in options:
        model.forward_backward(inputs=BATCH)
        model.clip_grad_norm()
        model.step(optim_params=params)
        model.zero_grad()
        model.lr_step()
    return model


def same(left, right):
    return all(torch.equal(value, right[name]) for name, value in left.items())


OPTIONS = {"lr": 5e-2, "weight_decay": 0.3, "betas": [0.8, 0.95]}


@pytest.mark.parametrize("schedule", [{}, {"total_iters": 4}])
@pytest.mark.parametrize("lr", [1e-2, 3.0])
@pytest.mark.parametrize(
    "go_on",
    [
        lambda model, path: model.resume_from_checkpoint(path),
        lambda model, path: model.load(path, load_optimizer=True),
    ],
)
def test_a_cut_run_goes_on_bit_for_bit_with_the_options_of_its_steps(
    engine_built, tiny_llama_dir, tmp_path, go_on, lr, schedule
):
    whole = train(make(tiny_llama_dir, **schedule), [None, OPTIONS, None, None])
    first = train(make(tiny_llama_dir, **schedule), [None, OPTIONS])
    path = first.save("cut", output_dir=str(tmp_path), save_optimizer=True)
    second = make(tiny_llama_dir, lr=lr, **schedule)
    go_on(second, path)
    assert second.get_train_configs() == first.get_train_configs()
    train(second, [None, None])
    assert same(second.get_state_dict(), whole.get_state_dict())


def _saved(model, folder, change=None):
    """A checkpoint of the model after a step. change: of the loop's state, in place."""
    model.forward_backward(inputs=[A])
    model.clip_grad_and_step()
    path = Path(model.save("x", output_dir=str(folder), save_optimizer=True))
    file = path / "trainer_state.json"
    whole = json.loads(file.read_text())
    state = json.loads(whole["extra"])
    if change is not None:
        change(state)
    file.write_text(json.dumps({**whole, "extra": json.dumps(state)}))
    return path


def _refused(model, path, text):
    """By either way, before anything changes; weights alone go with any."""
    before = (json.dumps(model._group().state(0)), len(model.engine.calls))
    for call in (
        lambda: model.resume_from_checkpoint(path),
        lambda: model.load(path, load_optimizer=True),
    ):
        with pytest.raises(InvalidError, match=text):
            call()
    assert (json.dumps(model._group().state(0)), len(model.engine.calls)) == before
    model.load(path)
    model.resume_from_checkpoint(path, resume_only_model=True)


def test_a_schedule_of_other_arguments_is_named_before_anything_changes(model, tmp_path):
    model.set_lr_scheduler("CosineWarmupScheduler", num_warmup_steps=0, num_training_steps=10)
    path = _saved(model, tmp_path)
    model.set_lr_scheduler("CosineWarmupScheduler", num_warmup_steps=0, num_training_steps=1000)
    _refused(
        model,
        path,
        'scheduler_options is .*"num_training_steps":1000}, but the checkpoint was saved with '
        '.*"num_training_steps":10}: call set_lr_scheduler as for .* or load weights alone',
    )
    model.set_lr_scheduler("CosineWarmupScheduler", num_training_steps=10, num_warmup_steps=0)
    model.resume_from_checkpoint(path)


def test_arguments_that_json_writes_otherwise_or_not_at_all_are_the_same(model, tmp_path):
    for name, options in (
        ("MultiStepLR", {"milestones": (1, 3)}),
        ("LambdaLR", {"lr_lambda": lambda step: 0.5**step}),
    ):
        model.set_lr_scheduler(name, **options)
        path = _saved(model, tmp_path)
        model.set_lr_scheduler(name, **options)
        model.resume_from_checkpoint(path)
        assert model._group().lr_step == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (5, "options of the checkpoint is 5, it must be a dict"),
        ({"speed": 1}, "AdamW has no option .*speed"),
        ({"lr": None}, "optimizer: lr is None, it must be a number"),
    ],
)
def test_damaged_options_are_named_before_anything_changes(model, tmp_path, options, text):
    path = _saved(model, tmp_path, lambda state: state.update(options=options))
    _refused(model, path, text)


@pytest.mark.parametrize("version", [1, 3])
def test_a_loops_state_of_another_format_is_refused_with_both_formats(model, tmp_path, version):
    path = _saved(model, tmp_path, lambda state: state.update(checkpoint_version=version))
    _refused(
        model,
        path,
        f"trainer_state.json: the loop's state is of format {version}, this version reads format 2"
        ": load only the weights",
    )


def test_a_state_without_a_loops_leaves_counters_and_options(model, tmp_path):
    """As another program saves it, `twinkle train` for example."""
    path = _saved(model, tmp_path, lambda state: state.pop("checkpoint_version"))
    model.set_optimizer("AdamW", lr=0.25)
    assert model.resume_from_checkpoint(path)["cur_step"] == 0
    group = model._group()
    assert (group.options["lr"], group.iters, group.lr_step) == (0.25, 0, 0)


@pytest.mark.parametrize("only_model", [False, True])
def test_resuming_returns_what_was_saved_of_the_loop(
    engine_built, tiny_llama_dir, tmp_path, only_model
):
    first = make(tiny_llama_dir)
    first._group().set_gradient_accumulation_steps(2)
    train(first, [None] * 4)
    path = first.save("x", output_dir=str(tmp_path), save_optimizer=True, consumed_train_samples=32)
    second = make(tiny_llama_dir)
    assert second.resume_from_checkpoint(path, resume_only_model=only_model) == {
        "cur_step": 4,
        "consumed_train_samples": 32,
        "gradient_accumulation_steps": 2,
    }
    group = second._group()
    counters = (group.cur_step, group.iters, group.lr_step, group.gradient_accumulation_steps)
    assert counters == ((0, 0, 0, 1) if only_model else (4, 2, 2, 2))
    weights = second.save("weights alone", output_dir=str(tmp_path))
    assert second.resume_from_checkpoint(weights, resume_only_model=True) == {
        "cur_step": 0,
        "consumed_train_samples": 0,
        "gradient_accumulation_steps": group.gradient_accumulation_steps,
    }


def test_weights_alone_come_with_a_new_optimizer(engine_built, tiny_llama_dir, tmp_path):
    first = train(make(tiny_llama_dir, dropout=0.0), [None] * 3)
    path = first.save("x", output_dir=str(tmp_path), save_optimizer=True)
    saved = first.get_state_dict()
    resumed, fresh = make(tiny_llama_dir, dropout=0.0), TransformersModel(model_id=tiny_llama_dir)
    resumed.resume_from_checkpoint(path, resume_only_model=True)
    assert same(resumed.get_state_dict(), saved) and resumed._group().cur_step == 0
    fresh.add_adapter_to_model("a", path)  # the same weights, and never an optimizer
    fresh.set_optimizer("AdamW", lr=1e-2)
    steps = []
    for model in (resumed, fresh, first):
        state = model.engine.inspect(tenant=model._group().tenant, tensors=True).result()
        moments = [n for n in state["tensors"] if n.startswith("optimizer/")]
        assert bool(moments) is (model is first)
        train(model, [None])
        steps.append(model.get_state_dict())
    assert same(steps[0], steps[1]) and not same(steps[0], steps[2])


@pytest.mark.parametrize(
    "take",
    [
        lambda model, path: model.load(path),
        lambda model, path: model.load(path, load_optimizer=True),
        lambda model, path: model.resume_from_checkpoint(path),
        lambda model, path: model.resume_from_checkpoint(path, resume_only_model=True),
    ],
)
def test_an_adapter_of_another_base_is_loaded_with_a_warning(
    engine_built, tiny_llama_dir, tmp_path, logged, take
):
    model = train(make(tiny_llama_dir), [None])
    path = Path(model.save("x", output_dir=str(tmp_path), save_optimizer=True))
    take(model, path)
    assert logged == []
    file = path / "adapter_config.json"
    config = {**json.loads(file.read_text()), "base_model_name_or_path": "Org/Another-1B"}
    file.write_text(json.dumps(config))
    take(model, path)
    (warning,) = logged
    assert warning.startswith(f"lora: the adapter at {path} was trained on 'Org/Another-1B', the ")


def test_all_weights_are_loaded_without_a_word_of_adapters(
    engine_built, tiny_llama_dir, tmp_path, logged
):
    model = TransformersModel(model_id=tiny_llama_dir)
    model.forward_backward(inputs=BATCH)
    del logged[:]  # that all weights are trained
    model.load(model.save("x", output_dir=str(tmp_path)))
    assert logged == []
