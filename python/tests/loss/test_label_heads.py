"""Reward models and classifiers: adapters with a head of labels, by a script's verbs."""

import math

import pytest
import torch
from features import drawn

from twinkle import InvalidError, LoraConfig
from twinkle.loss import ClassificationLoss, Loss, RewardLoss
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler

PAIRS = drawn([5, 17, 9, 12])
SCORES = torch.tensor([[0.5], [-0.25], [1.0], [2.0]])


def head(num_labels, **fields):
    return LoraConfig(
        r=4, target_modules="all-linear", task_type="SEQ_CLS", num_labels=num_labels, **fields
    )


def model_with(directory, num_labels, loss, **options):
    model = TransformersModel(model_id=directory, mixed_precision="no")
    model.add_adapter_to_model("default", head(num_labels, modules_to_save=["score"]))
    model.set_loss(loss, **options)
    model.set_optimizer("AdamW", lr=1e-2)
    return model


@pytest.mark.usefixtures("engine_built")
def test_the_losses_and_their_gradients_are_torchs():
    logits, margin = SCORES.clone().requires_grad_(), [0.5, 2.0]
    out = RewardLoss(center_rewards_coefficient=0.1)({}, {"logits": logits}, margin=margin)
    margins = logits[::2, 0] - logits[1::2, 0] - torch.tensor(margin)
    centre = ((logits[::2] + logits[1::2]) ** 2).mean()
    expected = -torch.nn.functional.logsigmoid(margins).mean() + 0.1 * centre
    torch.testing.assert_close(out["loss"].float(), expected)
    grads = [
        torch.autograd.grad(value, logits, retain_graph=True)[0]
        for value in (out["loss"], expected)
    ]
    torch.testing.assert_close(*grads)
    assert (
        RewardLoss()({}, {"logits": SCORES[:, 0]})["loss"]
        == RewardLoss()({}, {"logits": SCORES})["loss"]
    )
    wide = torch.randn(3, 5, requires_grad=True)
    ours = ClassificationLoss()({}, {"logits": wide}, label=[4, 0, 2])["loss"]
    theirs = torch.nn.functional.cross_entropy(wide, torch.tensor([4, 0, 2]))
    torch.testing.assert_close(ours.float(), theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, wide)[0] for loss in (ours, theirs)))


@pytest.mark.usefixtures("engine_built")
def test_a_reward_model_learns_to_prefer_and_two_passes_equal_one(tiny_llama_dir, tmp_path):
    model = model_with(tiny_llama_dir, 1, "RewardLoss", center_rewards_coefficient=0.01)
    model.add_metric("RewardMetric")
    losses = []
    for _ in range(20):
        out = model.forward_backward(inputs=PAIRS, margin=[0.5, 0.25])
        assert set(out) == {"loss", "num_tokens", "logits"} and out["logits"].shape == (4, 1)
        model.clip_grad_and_step()
        losses.append(out["loss"])
    assert losses[0] == pytest.approx(math.log(2) + 0.19, abs=0.1) and losses[-1] < 0.5 * losses[0]
    told = model.calculate_metric(is_training=True)
    assert told["rewards/margins"] == pytest.approx(
        told["rewards/chosen"] - told["rewards/rejected"]
    )
    scores = model.forward_only(inputs=PAIRS)["logits"]
    assert (scores[::2] > scores[1::2]).all()
    assert model.calculate_loss() == pytest.approx(
        RewardLoss(0.01)({}, {"logits": scores})["loss"].item()
    )
    model.save("reward", output_dir=str(tmp_path))
    again = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    again.add_adapter_to_model("default", tmp_path / "reward")
    assert torch.equal(again.forward_only(inputs=PAIRS)["logits"], scores)

    other = model_with(tiny_llama_dir, 1, RewardLoss(0.01))
    for loss in losses[:3]:
        other.forward(inputs=PAIRS)
        assert other.calculate_loss(margin=[0.5, 0.25]) == pytest.approx(loss)
        other.backward()
        other.clip_grad_and_step()


@pytest.mark.usefixtures("engine_built")
def test_a_classifier_learns_its_classes(tiny_llama_dir):
    model = model_with(tiny_llama_dir, 3, "ClassificationLoss")
    for _ in range(25):
        model.forward_backward(inputs=PAIRS, label=[2, 0, 1, 0], micro_batch_size=1)
        model.clip_grad_and_step()
    logits = model.forward_only(inputs=PAIRS)["logits"]
    assert logits.shape == (4, 3) and logits.argmax(-1).tolist() == [2, 0, 1, 0]


@pytest.mark.usefixtures("engine_built")
def test_what_a_head_of_labels_cannot_do_is_named(tiny_llama_dir):
    model = model_with(tiny_llama_dir, 1, "RewardLoss")
    model.add_adapter_to_model("plain", LoraConfig(r=2))
    model.set_loss("RewardLoss", adapter_name="plain")

    class Mine(RewardLoss):
        def __call__(self, inputs, outputs):
            return super().__call__(inputs, outputs)

    def refused(match, **kwargs):
        with pytest.raises(InvalidError, match=match):
            model.forward_backward(inputs=PAIRS, **{"adapter_name": "default", **kwargs})

    refused(
        "RewardLoss is of a head of labels, which the adapter does not have", adapter_name="plain"
    )
    refused("loss: margin", margin=[1.0])
    refused("temperature is 2", temperature=2.0)
    with pytest.raises(InvalidError, match="RewardLoss needs pairs"):
        model.forward_backward(inputs=PAIRS[:3], adapter_name="default")
    for loss in ("CrossEntropyLoss", Mine, Loss):
        model.set_loss(loss, adapter_name="default")
        refused("cannot be learnt through the adapter's head of labels: set RewardLoss or Classif")
    with pytest.raises(InvalidError, match="disable_lora is true"):
        model.forward_only(inputs=PAIRS, adapter_name="default", disable_lora=True)
    with pytest.raises(InvalidError, match="embeddings are asked for"):
        model.forward_only(inputs=PAIRS, adapter_name="default", task="embedding")
    sampler = TorchSampler(model=model)
    with pytest.raises(InvalidError, match="has a head of labels, which gives no tokens"):
        sampler.sample(inputs=PAIRS[:1], adapter_name="default")
    model.set_loss("ClassificationLoss", adapter_name="default")
    refused("loss: label is None, it must be one number for each of the 4 sequences")
    refused("give the adapter a head of num_labels 2 or more", label=[0, 0, 0, 0])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"task_type": "SEQ_CLS"}, "lora: num_labels is null, it must be 1 for rewards"),
        ({"task_type": "SEQ_CLS", "num_labels": 0}, "lora: num_labels is 0"),
        ({"num_labels": 2}, 'lora: num_labels is 2, it must be null: only task_type "SEQ_CLS"'),
        ({"modules_to_save": ["score"]}, "LoraConfig: field 'modules_to_save' is"),
        (
            {"task_type": "SEQ_CLS", "num_labels": 2, "modules_to_save": ["lm_head"]},
            "LoraConfig: field 'modules_to_save' is",
        ),
    ],
)
def test_heads_that_cannot_be_are_refused(fields, text):
    with pytest.raises(InvalidError, match=text):
        LoraConfig(**fields)


def test_pefts_config_of_sequences_is_read_but_for_the_number_of_labels():
    peft = pytest.importorskip("peft", reason="the package peft is not installed")
    theirs = peft.LoraConfig(
        task_type="SEQ_CLS", modules_to_save=["score"], target_modules=["q_proj"]
    )
    with pytest.raises(InvalidError, match="lora: num_labels is null"):
        LoraConfig.from_any(theirs)
    theirs.num_labels = 2
    assert LoraConfig.from_any(theirs).num_labels == 2
    made = LoraConfig.from_any({**theirs.to_dict(), "num_labels": 2})
    assert made.num_labels == 2 and made.to_dict()["modules_to_save"] == ["score"]
