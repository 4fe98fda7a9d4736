"""The scale of a gradient on the compiled engine, against transformers and torch: the norm that
clips it, the temperature, a loss's keyword arguments."""

import math

import pytest
import torch
from features import drawn

from twinkle import InvalidError
from twinkle.loss import Loss
from twinkle.model import TransformersModel

pytestmark = pytest.mark.usefixtures("engine_built")

BATCH = drawn([5, 17, 9])


@pytest.fixture
def fp32(tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.set_optimizer("SGD", lr=1.0, weight_decay=0.0)
    return model


@pytest.fixture
def reference(tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)


def scored(reference, temperature=1.0):
    """log p of each label of BATCH that is not ignored, with a gradient."""
    out = []
    for f in BATCH:
        logits = reference(torch.as_tensor(f["input_ids"])[None]).logits[0] / temperature
        labels = torch.as_tensor(f["labels"])
        kept = labels != -100
        out.append(logits.log_softmax(-1)[kept].gather(1, labels[kept][:, None])[:, 0])
    return torch.cat(out)


def gradients(model):
    """{name: accumulated gradient} of the engine, not yet divided by a number of tokens."""
    tensors = model.engine.inspect(tenant=model._group().tenant, tensors=True).result()["tensors"]
    return {n.removeprefix("grad/"): v for n, v in tensors.items() if n.startswith("grad/")}


def assert_gradients_equal(model, reference, loss):
    loss.backward()
    ours = gradients(model)
    assert len(ours) == len(list(reference.parameters()))
    for name, weight in reference.named_parameters():
        scale = float(weight.grad.abs().max())
        torch.testing.assert_close(
            torch.as_tensor(ours[name]), weight.grad, rtol=1e-3, atol=1e-4 * scale, msg=name
        )


@pytest.mark.parametrize("norm_type", [1, 2.5, math.inf])
@pytest.mark.parametrize("together", [True, False])
def test_the_norm_that_clips_is_of_the_type_that_was_asked_for(
    fp32, reference, norm_type, together
):
    logps = scored(reference)
    (-logps.sum() / len(logps)).backward()
    weights = list(reference.parameters())
    norm = float(torch.nn.utils.clip_grad_norm_(weights, math.inf, norm_type))
    limit = norm / 4
    torch.nn.utils.clip_grad_norm_(weights, limit, norm_type)
    fp32.forward_backward(inputs=BATCH)
    before = fp32.get_state_dict()
    if together:
        ours = fp32.clip_grad_and_step(max_grad_norm=limit, norm_type=norm_type)
    else:
        ours = fp32.clip_grad_norm(max_grad_norm=limit, norm_type=norm_type)
        fp32.step()
    assert ours == pytest.approx(norm, rel=1e-4)
    after = fp32.get_state_dict()
    for name, weight in reference.named_parameters():
        scale = float(weight.grad.abs().max())
        torch.testing.assert_close(
            before[name] - after[name], weight.grad, rtol=1e-3, atol=1e-3 * scale + 1e-7, msg=name
        )


class NegativeLogLikelihood(Loss):
    def __call__(self, inputs, outputs):
        mask = inputs["labels"] != -100
        return {"loss": -outputs["logps"][mask].sum(), "num_tokens": int(mask.sum())}


@pytest.mark.parametrize("loss", ["CrossEntropyLoss", NegativeLogLikelihood])
@pytest.mark.parametrize("together", [True, False])
def test_the_gradient_is_that_of_logits_divided_by_the_temperature(fp32, reference, loss, together):
    fp32.set_loss(loss)
    if together:
        value = fp32.forward_backward(inputs=BATCH, temperature=0.7)["loss"]
    else:
        fp32.forward(inputs=BATCH, temperature=0.7)
        value = fp32.calculate_loss()
        fp32.backward()
    expected = -scored(reference, temperature=0.7).sum()
    assert value == pytest.approx(expected.item(), rel=1e-5)
    assert_gradients_equal(fp32, reference, expected)


class Power(Loss):
    """The sum of |log p| to a power that is given with each call."""

    def __call__(self, inputs, outputs, *, power=1.0):
        return (outputs["logps"][inputs["labels"] != -100].abs() ** power).sum()


def test_keyword_arguments_of_calculate_loss_are_those_of_its_backward(fp32, reference):
    fp32.set_loss(Power)
    fp32.forward(inputs=BATCH)
    with pytest.raises(InvalidError, match="Power: unknown argument 'powr'; it takes power"):
        fp32.calculate_loss(powr=3.0)
    assert fp32.calculate_loss() != fp32.calculate_loss(power=3.0)  # the last one counts
    value = fp32.calculate_loss(power=3.0)
    fp32.backward()
    expected = (scored(reference).abs() ** 3).sum()
    assert value == pytest.approx(expected.item(), rel=1e-5)
    assert_gradients_equal(fp32, reference, expected)
