"""TransformersValueModel on the compiled engine: its loop, what it saves, and what it refuses."""

import math

import pytest
import torch
from features import drawn

from twinkle import InvalidError, LoraConfig
from twinkle.loss import CrossEntropyLoss, Loss, PPOValueLoss
from twinkle.model import TransformersModel, TransformersValueModel
from twinkle.sampler import TorchSampler

pytestmark = pytest.mark.usefixtures("engine_built")

BATCH = drawn([5, 17, 9, 11])
SCORED = [torch.as_tensor(f["labels"]) != -100 for f in BATCH]
RETURNS = [0.5, -1.0, 2.0, 1.0]


@pytest.fixture
def critic(tiny_llama_dir):
    model = TransformersValueModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.set_optimizer("AdamW", lr=1e-2)
    return model


def train(model, steps=1):
    losses = []
    for _ in range(steps):
        old = model.forward_only(inputs=BATCH)["values"]
        out = model.forward_backward(inputs=BATCH, old_values=old, returns=RETURNS)
        model.clip_grad_and_step()
        losses.append(out["loss"])
    return losses


@pytest.mark.parametrize("method", ["forward", "forward_only", "forward_backward"])
def test_values_are_there_alone_and_0_where_no_label_is(critic, method):
    train(critic)
    zeros = {"old_values": [0] * 4, "returns": RETURNS} if method == "forward_backward" else {}
    out = getattr(critic, method)(inputs=BATCH, **zeros)
    assert set(out) == {"loss", "num_tokens", "values"}
    values = out["values"]
    assert values.shape == (4, 17) and values.dtype == torch.float32
    for row, scored in zip(values, SCORED, strict=True):
        assert row[: len(scored)][scored].all() and not row[: len(scored)][~scored].any()
        assert not row[len(scored) :].any()


def test_masked_tokens_are_skipped(critic):
    train(critic)
    plain = critic.forward_only(inputs=BATCH[:1])["values"]
    ids, labels = (list(BATCH[0][name]) for name in ("input_ids", "labels"))
    padded = {"input_ids": [0, *ids], "labels": [3, *labels], "attention_mask": [0] + [1] * 5}
    out = critic.forward_only(inputs=[padded])["values"]
    assert torch.equal(out[:, 1:], plain) and not out[:, 0].any()


def test_the_loss_falls_and_two_passes_equal_one(critic, tiny_llama_dir):
    losses = train(critic, 12)
    assert losses[-1] < 0.5 * losses[0]
    other = TransformersValueModel(model_id=tiny_llama_dir, mixed_precision="no")
    other.set_optimizer("AdamW", lr=1e-2)
    for loss in losses[:3]:
        old = other.forward(inputs=BATCH)["values"]
        assert other.calculate_loss(old_values=old, returns=RETURNS) == pytest.approx(loss)
        other.backward()
        other.clip_grad_and_step()


def test_evaluation_has_a_loss_and_metrics(critic):
    critic.add_metric("PPOValueMetric", epsilon=0.1)
    train(critic, 2)
    assert "train/explained_variance" in critic.calculate_metric()
    old = critic.forward_only(inputs=BATCH)["values"]
    loss = critic.calculate_loss(old_values=old, returns=RETURNS)
    told = critic.calculate_metric(is_training=False)
    assert told["loss"] == loss and told["train/value_clip_ratio"] == 0
    flat = torch.cat([row[: len(s)][s] for row, s in zip(old, SCORED, strict=True)])
    assert told["train/value_mean"] == pytest.approx(flat.mean().item(), rel=1e-5)


class Squares(Loss):
    """Reads values where there are no labels, too; a gradient there goes nowhere."""

    require_values = True

    def __call__(self, inputs, outputs):
        assert outputs["values"].requires_grad and set(outputs) == {"values"}
        return (inputs["attention_mask"] * (outputs["values"] - 1.0).square()).sum()


def gradients(model):
    tensors = model.engine.inspect(tenant="full", tensors=True).result()["tensors"]
    return {name: torch.tensor(v) for name, v in tensors.items() if name.startswith("grad/")}


def test_a_loss_of_ones_own_learns_where_labels_are(critic):
    critic.set_loss(Squares)
    critic.forward_backward(inputs=BATCH)  # the head is zero: d loss / d bias is -2 a label
    labels = sum(int(s.sum()) for s in SCORED)
    assert gradients(critic)["grad/score.bias"].item() == pytest.approx(-2 * labels)


def test_micro_batches_of_ones_own_loss_add_up(critic, tiny_llama_dir):
    train(critic)
    whole = critic.set_loss(Squares) or critic.forward_backward(inputs=BATCH)["loss"]
    once = gradients(critic)
    critic.engine.zero_grad(tenant="full").result()
    part = critic.forward_backward(inputs=BATCH, micro_batch_size=2)["loss"]
    assert part == pytest.approx(whole / 2, rel=1e-6)  # a mean of the calls' means
    for name, value in gradients(critic).items():
        torch.testing.assert_close(value, once[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_cut_run_goes_on_bit_for_bit(tiny_llama_dir, tmp_path, precision):
    def make():
        model = TransformersValueModel(model_id=tiny_llama_dir, mixed_precision=precision)
        model.set_optimizer("AdamW", lr=1e-2)
        return model

    model = make()
    train(model, 3)
    path = model.save("cut", output_dir=str(tmp_path), save_optimizer=True)
    expected = train(model, 3)
    again = make()
    assert again.resume_from_checkpoint(path)["cur_step"] == 3
    assert train(again, 3) == expected
    values = again.forward_only(inputs=BATCH)["values"]
    assert torch.equal(values, model.forward_only(inputs=BATCH)["values"])
    state, theirs = again.get_state_dict(), model.get_state_dict()
    assert state["score.weight"].shape[0] == 1 and "lm_head.weight" not in state
    assert all(torch.equal(state[name], theirs[name]) for name in theirs)
    again.reload_initial_weights()
    assert not again.forward_only(inputs=BATCH)["values"].any()


def test_a_policys_checkpoint_is_no_critics_and_the_other_way_round(
    critic, tiny_llama_dir, tmp_path
):
    train(critic)
    mine = critic.forward_only(inputs=BATCH)["values"]
    policy = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    saved = policy.save("policy", output_dir=str(tmp_path))
    with pytest.raises(InvalidError, match=r"has no tensor score\.weight"):
        critic.load(saved)
    assert torch.equal(critic.forward_only(inputs=BATCH)["values"], mine)
    path = critic.save("critic", output_dir=str(tmp_path))
    with pytest.raises(InvalidError, match=r"with value_head .TransformersValueModel."):
        TransformersModel(model_id=path)


def test_adapters_and_sampling_are_refused_by_name(critic):
    with pytest.raises(InvalidError, match=r"add_adapter_to_model\('a'\): TransformersValueModel"):
        critic.add_adapter_to_model("a", LoraConfig(r=4))
    with pytest.raises(InvalidError, match="gives values, not tokens; sample from a Transformers"):
        TorchSampler(model=critic).sample([{"input_ids": [5, 6]}], {"max_tokens": 2})
    with pytest.raises(InvalidError, match="Accuracy compares with the likeliest tokens"):
        critic.add_metric("Accuracy")
    train(critic)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"task": "embedding"}, "model: task is 'embedding', but TransformersValueModel gives"),
        ({"return_logits": True}, "model: return_logits is True, but"),
        ({"temperature": 0.5}, "model: temperature is 0.5, but"),
    ],
)
def test_what_is_of_a_vocabulary_is_refused_by_name(critic, kwargs, text):
    for method in (critic.forward, critic.forward_only, critic.forward_backward):
        with pytest.raises(InvalidError, match=text):
            method(inputs=BATCH, **kwargs)


def test_a_reward_model_comes_to_score_chosen_replies_higher(critic):
    critic.set_loss("RewardLoss", center_rewards_coefficient=0.01)
    losses = []
    for _ in range(8):
        losses.append(critic.forward_backward(inputs=BATCH)["loss"])
        critic.clip_grad_and_step()
    assert losses[0] == pytest.approx(math.log(2)) and losses[-1] < 0.5 * losses[0]
    values = critic.forward_only(inputs=BATCH)["values"]
    last = [values[i, int(scored.nonzero().max())] for i, scored in enumerate(SCORED)]
    assert last[0] > last[1] and last[2] > last[3]


class Greedy(Squares):
    require_entropy = require_logits = True


class OfLogps(Squares):
    def __call__(self, inputs, outputs):
        return outputs["logps"].sum()


def test_a_loss_must_be_one_of_values_and_of_nothing_else(critic):
    for loss, name in ((CrossEntropyLoss, "CrossEntropyLoss"), (lambda i, o: 0, "FunctionLoss")):
        with pytest.raises(InvalidError, match=f"{name} has no require_values, but a Transform"):
            critic.set_loss(loss)
    with pytest.raises(InvalidError, match="Greedy has require_entropy and require_logits, but"):
        critic.set_loss(Greedy)
    assert isinstance(critic._group().loss, PPOValueLoss)
    critic.set_loss(OfLogps)
    text = r"reads outputs\['logps'\], but there is only outputs\['values'\]: a value model"
    with pytest.raises(InvalidError, match=text):
        critic.forward_backward(inputs=BATCH)


def test_a_batch_without_labels_has_no_values_and_teaches_nothing(critic):
    bare = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9], "labels": [-100, -100]}]
    assert not critic.forward_only(inputs=bare)["values"].any()
    with pytest.raises(InvalidError, match="model: the batch has no label to learn from"):
        critic.forward_backward(inputs=bare, old_values=[0, 0], returns=[1, 1])
    with pytest.raises(InvalidError, match="PPOValueLoss needs old_values"):
        critic.forward_backward(inputs=BATCH)
    with pytest.raises(InvalidError, match="step needs a backward"):
        critic.step()


def test_a_classifiers_class_is_taken_and_another_refused(tiny_llama_dir):
    for name in ("AutoModelForTokenClassification", "LlamaForCausalLM"):
        TransformersValueModel(name, tiny_llama_dir)
    with pytest.raises(InvalidError, match=r"is 'AutoModelForVision', .* a critic may be"):
        TransformersValueModel("AutoModelForVision", tiny_llama_dir)
