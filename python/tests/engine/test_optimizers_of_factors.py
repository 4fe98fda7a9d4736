"""Optimizers of an adapter's factors, through a script: Muon beside torch's own, LoRA+'s rates."""

import pytest
import torch
from features import drawn

from twinkle import InvalidError, LoraConfig
from twinkle.model import TransformersModel

pytestmark = pytest.mark.usefixtures("engine_built")

BATCH = drawn([7, 17, 9, 12])


@pytest.fixture
def adapted(tiny_llama_dir):
    def make(**optimizer):
        model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
        model.add_adapter_to_model("default", LoraConfig(r=4, target_modules="all-linear"))
        model.set_optimizer(**optimizer)
        return model

    return make


def tensors(model):
    return model.engine.inspect(tenant=model._group().tenant, tensors=True).result()["tensors"]


def factors(model):
    return {n: torch.as_tensor(t).clone() for n, t in model.get_state_dict().items()}


def test_muon_moves_factors_as_torchs_does_but_for_its_bfloat16(adapted):
    """As upstream's first recipe sets it."""
    options = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    model = adapted(optimizer_cls=torch.optim.Muon, **options)
    start = factors(model)
    theirs = {name: torch.nn.Parameter(value.clone()) for name, value in start.items()}
    torchs = torch.optim.Muon(theirs.values(), **options)
    for _ in range(3):
        model.forward_backward(inputs=BATCH)
        tokens = sum(int((f["labels"] != -100).sum()) for f in BATCH)
        found = {n.removeprefix("grad/"): g for n, g in tensors(model).items() if "grad/" in n}
        for name, value in theirs.items():
            [grad] = [g for n, g in found.items() if n.endswith(name) or name.endswith(n)]
            value.grad = torch.as_tensor(grad).clone() / tokens
        torchs.step()
        model.clip_grad_and_step(max_grad_norm=0)
    for name, value in factors(model).items():
        moved, wanted = value - start[name], theirs[name].detach() - start[name]
        assert (moved - wanted).norm() < 0.05 * wanted.norm(), name


def test_muon_takes_no_model_whose_norms_train(tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.set_optimizer("Muon", lr=0.1)
    model.forward_backward(inputs=BATCH)
    before = factors(model)
    with pytest.raises(InvalidError, match=r"Muon updates matrices, but .*norm.* has shape"):
        model.clip_grad_and_step()
    assert all(torch.equal(value, before[name]) for name, value in factors(model).items())


def test_lora_plus_multiplies_the_rate_of_b(adapted):
    moved = []
    for ratio in (1, 4):
        model = adapted(optimizer_cls="SGD", lr=0.1, weight_decay=0, loraplus_lr_ratio=ratio)
        before = factors(model)
        model.forward_backward(inputs=BATCH)
        model.clip_grad_and_step(max_grad_norm=0)
        moved.append({n: value - before[n] for n, value in factors(model).items()})
    for name, plain in moved[0].items():
        factor = 4 if "lora_B" in name else 1
        torch.testing.assert_close(moved[1][name], factor * plain, rtol=1e-5, atol=1e-9)
    model = TransformersModel(model_id=model.model_id, mixed_precision="no")
    model.set_optimizer("AdamW", lr=0.1, loraplus_lr_ratio=16)
    model.forward_backward(inputs=BATCH)
    with pytest.raises(InvalidError, match="loraplus_lr_ratio is 16, but there is no LoRA"):
        model.clip_grad_and_step()


def test_lion_resumes_with_the_bits_of_a_run_that_went_on(adapted, tmp_path):
    model = adapted(optimizer_cls="Lion", lr=1e-3)
    for step in range(4):
        if step == 2:
            model.save("half", str(tmp_path), save_optimizer=True)
        model.forward_backward(inputs=BATCH)
        model.clip_grad_and_step()
    other = adapted(optimizer_cls="Lion", lr=1e-3)
    other.load("half", str(tmp_path), load_optimizer=True)
    for _ in range(2):
        other.forward_backward(inputs=BATCH)
        other.clip_grad_and_step()
    wanted = factors(model)
    assert all(torch.equal(value, wanted[name]) for name, value in factors(other).items())
