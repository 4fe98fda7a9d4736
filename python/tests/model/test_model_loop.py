"""The training loop's verbs over a fake engine (a bigram model), against plain torch."""

import math

import pytest
import torch
from features import A, B, C, reference

from twinkle import InvalidError, LoraConfig
from twinkle.model import TransformersModel


def test_single_device_script_without_adapter_or_optimizer_trains_every_weight(model):
    before = model.engine.base.clone()
    weight = before.clone().requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=1e-5, weight_decay=0.01)
    for batch in ([A, B], [C]):
        out = model.forward_backward(inputs=batch)
        loss, count = reference(weight, batch)
        assert out["loss"] == pytest.approx(loss.item()) and out["num_tokens"] == count
        (loss / count).backward()
        norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
        assert model.clip_grad_and_step() == pytest.approx(float(norm))
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(model.engine.base, before)
    torch.testing.assert_close(model.engine.base, weight.detach())


def test_output_has_one_row_per_sequence_and_zeros_where_labels_are_ignored(model):
    out = model.forward_only(inputs=[A, B])
    assert out["logps"].shape == (2, 4) and out["logps"].dtype == torch.float32
    assert (out["logps"] != 0).tolist() == [[True, True, False, False], [False, True, True, False]]
    assert out["num_tokens"] == 4


def test_accumulation_steps_at_exactly_every_kth_micro_batch(adapted):
    model = adapted(gradient_accumulation_steps=3)
    model.set_optimizer("SGD", lr=0.1)
    stepped = []
    for _ in range(7):
        model.forward_backward(inputs=A)
        stepped.append(model.clip_grad_and_step() is not None)
    assert stepped == [False, False, True, False, False, True, False]


def test_accumulated_micro_batches_equal_one_batch_of_all(adapted, fake_core, tmp_path):
    model = adapted(gradient_accumulation_steps=2)
    model.set_optimizer("SGD", lr=0.5, weight_decay=0.0)
    for batch in ([A], [B, C]):
        model.forward_backward(inputs=batch)
        model.clip_grad_norm(1e9)
        model.step()
        model.zero_grad()
        model.lr_step()
    other = TransformersModel(model_id=str(tmp_path))
    other.add_adapter_to_model("x", LoraConfig(r=2))
    other.set_optimizer("SGD", lr=0.5, weight_decay=0.0)
    other.forward_backward(inputs=[A, B, C])
    other.clip_grad_and_step(max_grad_norm=0)
    torch.testing.assert_close(model.get_state_dict()["weight"], other.get_state_dict()["weight"])


def test_the_four_verbs_equal_clip_grad_and_step(fake_core, tmp_path):
    weights = []
    for together in (True, False):
        model = TransformersModel(model_id=str(tmp_path))
        model.set_lr_scheduler("ExponentialLR", gamma=0.5)
        for batch in ([A], [B], [C]):
            if together:
                model.forward_backward(inputs=batch)
                model.clip_grad_and_step(0.1)
            else:
                model.forward(inputs=batch)
                loss = model.calculate_loss()
                assert loss == pytest.approx(reference(model.engine.base, batch)[0].item(), 1e-5)
                model.backward()
                model.clip_grad_norm(0.1)
                model.step()
                model.zero_grad()
                model.lr_step()
        weights.append(model.engine.base)
        assert [c[1] for c in model.engine.calls if c[0] == "step"] == [1e-5, 5e-6, 2.5e-6]
    torch.testing.assert_close(*weights)


def test_step_takes_the_options_it_is_given_from_then_on(model):
    for options in ({"lr": 0.5}, None):
        model.forward_backward(inputs=A)
        model.step(optim_params=options)
    assert [call[1] for call in model.engine.calls if call[0] == "step"] == [0.5, 0.5]


def test_zero_grad_before_a_step_forgets_what_was_accumulated(model):
    model.forward_backward(inputs=A)
    assert any(tenant["grad"].any() for tenant in model.engine.tenants.values())
    model.zero_grad()
    assert not any(tenant["grad"].any() for tenant in model.engine.tenants.values())
    with pytest.raises(InvalidError, match="step needs a backward"):
        model.step()


def test_backward_and_clip_grad_and_step_set_the_accumulation(adapted):
    model = adapted()
    model.set_optimizer("SGD", lr=0.1)
    stepped = []
    for _ in range(2):
        model.forward_backward(inputs=A)
        stepped.append(model.clip_grad_and_step(gradient_accumulation_steps=2) is not None)
    for _ in range(3):
        model.forward(inputs=A)
        model.calculate_loss()
        model.backward(gradient_accumulation_steps=3)
        stepped.append(model.clip_grad_and_step() is not None)
    assert stepped == [False, True, False, False, True]


def test_reported_grad_norm_is_that_before_clipping(model):
    model.forward_backward(inputs=A)
    norm = model.clip_grad_norm(1e-3)
    model.step()
    assert norm > 1e-3
    assert model.calculate_metric(is_training=True)["grad_norm"] == norm


@pytest.mark.parametrize("verb", ["clip_grad_norm", "clip_grad_and_step"])
def test_an_infinite_limit_measures_and_does_not_clip(fake_core, tmp_path, verb):
    weights, norms = [], []
    for limit in (0, math.inf):
        model = TransformersModel(model_id=str(tmp_path))
        model.forward_backward(inputs=A)
        norms.append(getattr(model, verb)(max_grad_norm=limit))
        if verb == "clip_grad_norm":
            model.step()
        weights.append(model.engine.base)
    assert norms[0] == norms[1] > 0
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    for wrong in (math.nan, -math.inf, -1):
        with pytest.raises(InvalidError, match="model: max_grad_norm is"):
            getattr(model, verb)(max_grad_norm=wrong)


def test_a_forward_that_another_pass_replaced_is_forgotten_and_the_pass_kept(fake_core, tmp_path):
    weights = []
    for forward_before in (False, True):
        model = TransformersModel(model_id=str(tmp_path))
        if forward_before:
            model.forward(inputs=[A])
            model.calculate_loss()
        model.forward_backward(inputs=[B])
        with pytest.raises(InvalidError, match="calculate_loss needs a forward or forward_only"):
            model.calculate_loss()
        with pytest.raises(InvalidError, match="backward needs forward and calculate_loss"):
            model.backward()
        model.clip_grad_and_step()
        weights.append(model.engine.base)
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_step_and_backward_in_the_wrong_order_are_refused(model):
    with pytest.raises(InvalidError, match="step needs a backward"):
        model.step()
    with pytest.raises(InvalidError, match="backward needs forward and calculate_loss"):
        model.backward()
    with pytest.raises(InvalidError, match="calculate_loss needs a forward"):
        model.calculate_loss()
    model.forward(inputs=A)
    with pytest.raises(InvalidError, match="backward needs forward and calculate_loss"):
        model.backward()
