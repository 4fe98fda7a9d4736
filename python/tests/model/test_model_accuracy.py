"""The metric Accuracy: what the model would choose, against the bigram's own rows and against
transformers."""

import pytest
import torch
from features import A, B

from twinkle.metric import Accuracy


def test_the_likeliest_tokens_are_counted_where_there_is_a_label(model):
    last = {"input_ids": [3, 4], "labels": [-100, 7], "attention_mask": [1, 1]}
    padded = {"input_ids": [1, 2, 3], "labels": [2, 3, -100], "attention_mask": [0, 1, 1]}
    features = [A, B, last, padded]
    model.add_metric("Accuracy")
    rows = model.engine.base.argmax(-1)
    pairs = [(1 if i == 3 and t == 0 else 0, f["input_ids"][t], f["labels"][t])
             for i, f in enumerate(features) for t in range(len(f["input_ids"]))]  # fmt: skip
    # Position 0 of the last feature is masked; the engine never sees it, so its label stays wrong.
    counted = [(masked, token, label) for masked, token, label in pairs if label != -100]
    correct = sum(not masked and int(rows[token]) == label for masked, token, label in counted)
    model.forward_backward(inputs=features)
    metric = model.calculate_metric(is_training=True)
    assert metric["total_tokens"] == len(counted)
    assert metric["correct_tokens"] == correct
    assert metric["accuracy"] == correct / len(counted)
    assert "accuracy" not in model.calculate_metric(is_training=True)


def test_evaluation_asks_the_weights_that_scored_the_batch(adapted):
    model = adapted()
    model.set_optimizer("SGD", lr=50.0)
    model.add_metric("Accuracy", is_training=False)
    learned = {"input_ids": [1, 2, 3], "labels": [2, 3, 4], "attention_mask": [1, 1, 1]}
    for _ in range(20):
        model.forward_backward(inputs=[learned])
        model.clip_grad_and_step()
    assert "accuracy" not in model.calculate_metric(is_training=True)
    base = (model.engine.base[[1, 2, 3]].argmax(-1) == torch.tensor([2, 3, 4])).double().mean()
    for disable_lora, expected in ((False, 1.0), (True, base.item())):
        model.forward_only(inputs=[learned], disable_lora=disable_lora)
        model.calculate_loss()
        assert model.calculate_metric(is_training=False)["accuracy"] == expected


def test_logits_and_completion_masks_count_as_well():
    metric = Accuracy()
    labels = torch.tensor([[1, 2, -100], [0, 0, 3]])
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 0, 3], [0, 1, 3]]), 4).float()
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    metric.accumulate({"labels": labels}, {"logits": logits})
    assert metric.calculate() == {"accuracy": 0.6, "correct_tokens": 3, "total_tokens": 5}
    metric.reset()
    metric.accumulate({"labels": labels, "completion_mask": mask}, {"logits": logits})
    assert metric.calculate() == {"accuracy": 0.5, "correct_tokens": 2, "total_tokens": 4}


def test_the_share_is_that_of_transformers_logits(engine_built, tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    from twinkle.model import TransformersModel

    reference = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_llama_dir, dtype=torch.float32
    )
    torch.manual_seed(3)
    features, correct, total = [], 0, 0
    for length in (1, 2, 17, 40):
        ids = torch.randint(5, 300, (length,))
        with torch.no_grad():
            chosen = reference(ids[None]).logits[0].argmax(-1)
        labels = torch.where(torch.rand(length) < 0.5, chosen, torch.randint(5, 300, (length,)))
        labels[torch.rand(length) < 0.2] = -100
        features.append({"input_ids": ids.tolist(), "labels": labels.tolist()})
        correct += int((labels == chosen).sum())
        total += int((labels != -100).sum())
    model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.add_metric("Accuracy", is_training=False)
    model.forward_only(inputs=features)
    model.calculate_loss()
    metric = model.calculate_metric(is_training=False)
    assert (metric["correct_tokens"], metric["total_tokens"]) == (correct, total)
    assert total > correct > 0
