"""Metrics of reinforcement learning against loops over tokens."""

import math

import numpy as np
import pytest
import torch
from loss_batches import batch, by_hand, drawn_logps, ragged

import twinkle.metric
from twinkle import InvalidError
from twinkle.metric import CISPOMetric, GRPOMetric, GSPOMetric, PPOMetric

ADVANTAGES = [0.7, -1.3, 2.0, -0.4]
NEW, OLD = drawn_logps(1).detach(), drawn_logps(2).detach()
D = np.concatenate(by_hand(lambda i, n, o: n - o, NEW, OLD))
SIGNS = np.concatenate(by_hand(lambda i, n: np.sign(ADVANTAGES[i]), NEW))


def seen(metric, new=NEW, **kwargs):
    metric.accumulate(batch(), {"logps": new, "loss": 1.0}, lr=1e-3, step=1, **kwargs)
    return metric.calculate()


@pytest.mark.parametrize("cls", [GRPOMetric, PPOMetric])
def test_every_number_is_its_formula(cls):
    entropies = drawn_logps(4).detach().abs()
    metric = cls(epsilon=0.3, epsilon_high=0.6)
    outputs = {"logps": NEW, "entropies": entropies}
    metric.accumulate(batch(), outputs, old_logps=ragged(OLD), advantages=ADVANTAGES)
    ratio, k3 = np.exp(D), np.exp(D) - D - 1
    low, high = ((ratio < 0.7) & (SIGNS < 0)).mean(), ((ratio > 1.6) & (SIGNS > 0)).mean()
    assert low > 0 and high > 0, "or the batch would show nothing"
    new, old = (np.concatenate(ragged(x)) for x in (NEW, OLD))
    assert metric.calculate() == pytest.approx(
        {
            "train/policy_confidence": math.exp(new.mean()),
            "train/mean_new_logp": new.mean(),
            "train/mean_old_logp": old.mean(),
            "train/logp_diff_mean": D.mean(),
            "train/approx_kl": k3.mean(),
            "train/token_kl_max": k3.max(),
            "train/token_ratio_max": ratio.max(),
            "train/entropy": np.concatenate(ragged(entropies)).mean(),
            "train/clip_ratio_low": low,
            "train/clip_ratio_high": high,
            "train/clip_ratio": low + high,
        }
    )


def test_rows_with_logps_of_their_own_count_as_their_batch_does():
    """As scripts of ModelScope's Twinkle pass them: rows are not padded, log-probabilities are."""
    given = {"old_logps": ragged(OLD), "advantages": ADVANTAGES}
    mask = batch()["attention_mask"].bool()
    labels = [row[m] for row, m in zip(batch()["labels"], mask, strict=True)]
    metric = GRPOMetric()
    rows = [{"input_ids": [7] * len(row), "labels": row.tolist()} for row in labels]
    metric.accumulate(rows, {"logps": [NEW[i : i + 1] for i in range(4)]}, **given)
    assert metric.calculate() == pytest.approx(seen(GRPOMetric(), **given))
    pairs = [{name: values[i : i + 2] for name, values in batch().items()} for i in (0, 2)]
    metric.reset()
    metric.accumulate(pairs, {"logps": [NEW[:2], NEW[2:]]}, **given)
    assert metric.calculate() == pytest.approx(seen(GRPOMetric(), **given))
    with pytest.raises(InvalidError, match="metric: 4 inputs and 2 logps"):
        metric.accumulate(rows, {"logps": [NEW[:2], NEW[2:]]}, **given)


def test_what_was_not_given_is_not_there():
    assert set(seen(GRPOMetric())) == {"train/policy_confidence", "train/mean_new_logp"}
    assert not any("clip" in name for name in seen(GRPOMetric(), old_logps=OLD))
    metric = GRPOMetric()
    assert metric.calculate() == {}
    metric.accumulate(batch(), {"embeddings": torch.zeros(4, 2)})
    empty = {"labels": torch.full((4, 6), -100)}
    metric.accumulate(empty, {"logps": NEW}, old_logps=OLD, advantages=ADVANTAGES)
    assert metric.calculate() == {}


def test_gspos_shares_are_of_sequences_with_labels():
    metric, inputs = GSPOMetric(epsilon=0.1), batch()
    inputs["labels"][2] = -100
    metric.accumulate(inputs, {"logps": NEW}, old_logps=OLD, advantages=ADVANTAGES)
    out = metric.calculate()
    ratios = [np.exp(np.mean(row)) for row in by_hand(lambda i, n, o: n - o, NEW, OLD)]
    pairs = [(ratios[i], ADVANTAGES[i]) for i in (0, 1, 3)]
    low, high = [r < 0.9 and a < 0 for r, a in pairs], [r > 1.1 and a > 0 for r, a in pairs]
    assert out["train/clip_ratio_low"] == np.mean(low)
    assert out["train/clip_ratio_high"] == np.mean(high)
    assert out["train/clip_ratio"] > 0


def test_cispos_share_is_of_tokens_of_either_sign_above_the_clip_alone():
    out = seen(CISPOMetric(epsilon=0.3), old_logps=OLD, advantages=ADVANTAGES)
    assert (np.exp(D) < 0.7).any(), "or the batch would show nothing"
    assert out["train/clip_ratio_low"] == 0
    assert out["train/clip_ratio_high"] == pytest.approx((np.exp(D) > 1.3).mean())
    assert out["train/clip_ratio"] == out["train/clip_ratio_high"] > 0


def test_calls_are_averaged_by_labels_until_the_reset():
    metric = GRPOMetric()
    first, other = batch(), {name: value[:1] for name, value in batch().items()}
    metric.accumulate(first, {"logps": NEW}, old_logps=OLD)
    metric.accumulate(other, {"logps": OLD[:1]}, old_logps=NEW[:1])
    k3 = np.concatenate([D, -D[:3]])
    k3 = np.exp(k3) - k3 - 1
    assert metric.calculate()["train/approx_kl"] == pytest.approx(k3.mean())
    metric.reset()
    assert metric.calculate() == {}


def test_the_temperature_scales_means_and_no_ratio():
    plain, scaled = (seen(GRPOMetric(temperature=t), old_logps=OLD) for t in (1.0, 0.5))
    for name, value in scaled.items():
        if name == "train/policy_confidence":
            assert value == pytest.approx(math.exp(scaled["train/mean_new_logp"]))
        else:
            factor = 0.5 if name in ("train/mean_new_logp", "train/mean_old_logp") else 1
            assert value == pytest.approx(factor * plain[name])


def test_the_records_are_of_the_greatest_k3():
    metric = GRPOMetric(top_k_kl=3)
    for _ in range(2):
        metric.accumulate(batch(), {"logps": NEW}, old_logps=OLD)
    records = metric.calculate()["_high_kl_records"]
    assert len(records) == 6
    k3 = np.exp(D) - D - 1
    assert [r["kl"] for r in records[:3]] == pytest.approx(sorted(k3)[:-4:-1])
    for index, record in enumerate(records):
        row, pos = record["gsi"] - 4 * (index // 3), record["pos"]
        assert 0 <= row < 4
        assert record["token_id"] == batch()["labels"][row, pos]
        assert record["logp_new"] == pytest.approx(float(NEW[row, pos]))
        assert record["logp_old"] == pytest.approx(float(OLD[row, pos]))
        assert record["ratio"] == pytest.approx(math.exp(float(NEW[row, pos] - OLD[row, pos])))
    metric.reset()
    assert "_high_kl_records" not in seen(metric, old_logps=NEW)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": 0}, "metric: temperature is 0, it must be a number above 0"),
        ({"epsilon": -1}, "metric: epsilon is -1"),
        ({"epsilon_high": "a"}, "metric: epsilon_high is 'a'"),
        ({"top_k_kl": -1}, "metric: top_k_kl is -1"),
        ({"colour": 1}, "unknown argument 'colour'"),
    ],
)
def test_an_option_that_cannot_be_is_named(options, text):
    with pytest.raises(InvalidError, match=text):
        twinkle.construct_class("GSPOMetric", twinkle.metric.Metric, twinkle.metric, **options)
