"""Metrics of preferences, embeddings, and of sampling and rewarding, against loops."""

import copy
import inspect
import statistics

import numpy as np
import pytest
import torch
from loss_batches import batch, drawn_logps, ragged

import twinkle.metric
from twinkle import InvalidError
from twinkle.core import core
from twinkle.metric import (
    Accuracy,
    CompletionRewardMetric,
    DPOMetric,
    EmbeddingMetric,
    GRPOMetric,
    LossMetric,
    TrainMetric,
)

NEW, REF = drawn_logps(1).detach(), drawn_logps(2).detach()
SUMS, REF_SUMS = ([sum(row) for row in ragged(logps)] for logps in (NEW, REF))


@pytest.mark.parametrize(
    "given",
    [
        {"ref_outputs": {"logps": REF}},
        {"ref_logps": ragged(REF)},
        {"ref_chosen_logps": REF_SUMS[::2], "ref_rejected_logps": REF_SUMS[1::2]},
    ],
)
def test_dpos_numbers_are_means_over_pairs(given):
    metric = DPOMetric(beta=0.2)
    metric.accumulate(batch(), {"logps": NEW}, lr=1e-3, **given)
    gains = 0.2 * np.subtract(SUMS, REF_SUMS)
    margins = gains[::2] - gains[1::2]
    expected = {
        "logps/chosen": np.mean(SUMS[::2]),
        "logps/rejected": np.mean(SUMS[1::2]),
        "logps/ref_chosen": np.mean(REF_SUMS[::2]),
        "logps/ref_rejected": np.mean(REF_SUMS[1::2]),
        "rewards/chosen": gains[::2].mean(),
        "rewards/rejected": gains[1::2].mean(),
        "rewards/margins": margins.mean(),
        "rewards/accuracies": 100 * (margins > 0).mean(),
    }
    assert metric.calculate() == pytest.approx(expected)
    two = {name: value[:2] for name, value in batch().items()}
    metric.accumulate(two, {"logps": REF[:2]}, ref_logps=NEW[:2])
    out, margins = metric.calculate(), [*margins, -margins[0]]
    assert out["rewards/margins"] == pytest.approx(np.mean(margins)), "by pairs"
    right = 100 * np.mean(np.array(margins) > 0)
    assert out["rewards/accuracies"] == pytest.approx(right) and right != 50
    metric.reset()
    assert metric.calculate() == {}


def test_without_a_reference_there_are_no_rewards():
    metric = DPOMetric()
    metric.accumulate(batch(), {"logps": NEW})
    assert set(metric.calculate()) == {"logps/chosen", "logps/rejected"}
    metric.reset()
    metric.accumulate(batch(), {"embeddings": torch.zeros(4, 2)})
    assert metric.calculate() == {}
    three = {name: value[:3] for name, value in batch().items()}
    with pytest.raises(
        InvalidError, match=r"^metric: DPOMetric needs pairs, .* there are 3 sequences"
    ):
        metric.accumulate(three, {"logps": NEW[:3]})
    with pytest.raises(InvalidError, match=r"ref_chosen_logps\[0\] has 2 entries, it must be one"):
        metric.accumulate(batch(), {"logps": NEW}, ref_chosen_logps=[[1, 2]] * 2,
                          ref_rejected_logps=[1, 2])  # fmt: skip
    assert metric.calculate() == {}
    with pytest.raises(InvalidError, match="metric: beta is 0, it must be a number above 0"):
        DPOMetric(beta=0)


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def test_embeddings_are_compared_with_their_own_and_others_positives():
    torch.manual_seed(0)
    x = torch.randn(7, 3)
    labels = torch.tensor([[1], [0], [0], [1], [0], [1], [0]])
    metric = EmbeddingMetric()
    metric.accumulate({"labels": labels}, {"embeddings": x, "loss": 2.0})
    metric.accumulate({"labels": labels[:3]}, {"embeddings": x[:3], "loss": 1.0})
    metric.accumulate({"labels": labels}, {"logps": x, "loss": 100.0})
    metric.on_step(grad_norm=0.5, lr=1e-3, iters=1)
    pairs = [(0, 1), (3, 4), (5, 6)]
    own = [cosine(x[a], x[p]) for a, p in [*pairs, (0, 1)]]
    others = [cosine(x[a], x[p]) for a, _ in pairs for b, p in pairs if a != b]
    expected = {
        "pos_sim": np.mean(own),
        "pos_sim_min": min(own),
        "pos_sim_max": max(own),
        "neg_sim": np.mean(others),
        "loss": 1.5,
        "grad_norm": 0.5,
    }
    assert metric.calculate() == pytest.approx(expected, rel=1e-5)
    metric.reset()
    assert metric.calculate() == {"grad_norm": 0.5}
    with pytest.raises(
        InvalidError, match=r"^metric: EmbeddingMetric: the first sequence has the label 0"
    ):
        metric.accumulate({"labels": labels[1:]}, {"embeddings": x[1:]})


def test_rewards_lengths_and_times_are_means_since_the_reset():
    metric = CompletionRewardMetric()
    metric.accumulate(
        completion_lengths=[3, 5], rewards={"total": [1.0, 0.0], "format": [1, 1]}, generate_time=2
    )
    metric.accumulate(
        completion_lengths=np.array([10]),
        rewards={"total": torch.tensor([0.5])},
        generate_time=4.0,
        weight_sync_time=0.5,
    )
    metric.accumulate({"labels": None}, {"loss": 1.0}, lr=1e-3, step=3)  # as a model calls it
    expected = {
        "train/total_reward": 0.5,
        "train/total_reward_std": statistics.stdev([1.0, 0.0, 0.5]),
        "train/format_reward": 1.0,
        "train/format_reward_std": 0.0,
        "train/completion_length": 6.0,
        "profiling/Time taken: generate": 3.0,
        "profiling/Time taken: move_model_to_sampler": 0.5,
    }
    assert metric.calculate() == pytest.approx(expected)
    metric.reset()
    assert metric.calculate() == {}
    metric.accumulate(completion_lengths=[4], rewards={"one": [0.25], "none": []})
    assert metric.calculate() == {
        "train/one_reward": 0.25,
        "train/one_reward_std": 0.0,
        "train/completion_length": 4.0,
    }
    with pytest.raises(InvalidError, match="unknown argument 'reward'; it takes completion_leng"):
        metric.accumulate(completion_lengths=[4], reward={"one": [0.25]})
    before = metric.calculate()
    for given in (([4], {"one": [0.25]}), (None, [4]), (np.array([4]),)):
        with pytest.raises(InvalidError, match=r"puts of CompletionRewardMetric is .* rewards= by"):
            metric.accumulate(*given)
    assert metric.calculate() == before


def test_metrics_that_a_script_accumulates_itself():
    """As the scripts of ModelScope's Twinkle call them, with numbers in place of texts."""
    accuracy = Accuracy()
    accuracy.accumulate({"labels": torch.tensor([1, -100, 3])}, {"logits": torch.eye(4)[[1, 2, 0]]})
    assert accuracy.calculate() == {"accuracy": 0.5, "correct_tokens": 1, "total_tokens": 2}
    accuracy.reset()
    accuracy.accumulate({"labels": torch.tensor([1])}, {})
    assert accuracy.calculate() == {}
    with pytest.raises(InvalidError, match=r"Accuracy has predictions of the shape \[3\], but"):
        accuracy.accumulate({"labels": torch.tensor([1, 2])}, {"logits": torch.eye(3)})

    loss = LossMetric()
    labels, given = torch.tensor([1, 2, -100]), {"loss_reduction": "sum", "grad_norm": 0.5}
    loss.accumulate({"labels": labels}, {"loss": torch.tensor(3.0)}, **given)
    loss.accumulate({"labels": labels}, {"loss": 5.0, "num_tokens": torch.tensor(2)}, **given)
    assert loss.calculate() == {"loss": 2.0, "num_tokens": 2, "grad_norm": 0.5}

    train = TrainMetric()
    train.accumulate({}, {}, lr=[1e-4, 2e-4], step=10, gradient_accumulation_steps=2)
    seen = train.calculate()
    rates = seen["learning rate(param group 1)"], seen["learning rate(param group 2)"]
    assert (*rates, seen["iters"]) == (1e-4, 2e-4, 5) and seen["speed"] > 0
    train.accumulate({}, {}, lr=1e-3, step=12, gradient_accumulation_steps=2)
    assert (train.calculate()["learning rate"], train.calculate()["iters"]) == (1e-3, 6)

    x = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    for logits in (x, torch.stack([x, -x], 1)):  # the first position's, of three dimensions
        embedding = EmbeddingMetric()
        embedding.accumulate({"labels": torch.tensor([1, 0])}, {"logits": logits})
        assert embedding.calculate()["pos_sim"] == pytest.approx(0.6)

    policy, logps = GRPOMetric(), torch.tensor([[-1.0, -2.0, 0.0, 0.0]])
    policy.accumulate({"labels": torch.tensor([[1, 2]])}, None)
    inputs = {"labels": torch.tensor([[1, 2, -100, -100]])}
    policy.accumulate(inputs, {"logps": logps}, old_logps=[torch.tensor([[-1.0, -1.5]])])
    assert policy.calculate()["train/logp_diff_mean"] == pytest.approx(-0.25)


def test_options_are_those_of_the_engine_in_their_order(engine_built):
    for name, options in core().metric_options().items():
        parameters = list(inspect.signature(getattr(twinkle.metric, name)).parameters.values())
        own = {p.name: p.default for p in parameters[2:] if p.kind is not p.VAR_KEYWORD}
        assert list(own.items()) == [(o["name"], o["default"]) for o in options], name
    assert EmbeddingMetric(None, None).device_mesh is None
    assert (DPOMetric(beta=0.3).beta, GRPOMetric(top_k_kl=2).top_k_kl) == (0.3, 2)


def test_a_subclass_of_ones_own_is_the_metric_and_a_copy_of_it_begins_anew():
    class Halved(DPOMetric):
        def calculate(self):
            return {name: value / 2 for name, value in super().calculate().items()}

    metric = Halved(beta=0.2)
    metric.accumulate(batch(), {"logps": NEW})
    assert metric.calculate()["logps/chosen"] == pytest.approx(np.mean(SUMS[::2]) / 2)
    other = copy.deepcopy(metric)
    assert other.calculate() == {} and other.beta == 0.2
    other.accumulate(batch(), {"logps": NEW})
    assert other.calculate() == metric.calculate()
