"""The Python examples of docs/adding.md, which go on where a script has a model and a dataset."""

from pathlib import Path

import pytest

from twinkle import LoraConfig
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.template import Template

pytestmark = pytest.mark.usefixtures("engine_built", "data_built")

FEATURE = {"input_ids": [5, 6, 7, 8], "labels": [6, 7, -100, -100]}


def example(index):
    text = (Path(__file__).parents[3] / "docs/adding.md").read_text()
    code = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    assert len(code) == 3
    return compile(code[index], "docs/adding.md", "exec")


def test_the_loss_of_the_document_trains(tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.add_adapter_to_model("default", LoraConfig(r=2, target_modules="all-linear"))
    model.set_optimizer("SGD", lr=0.5)
    exec(example(0), {"model": model})
    losses = []
    for _ in range(2):
        logps = model.forward_only(inputs=[FEATURE])["logps"][0, :2]
        expected = -((1 - logps.exp()) ** 2 * logps).sum()
        outputs = model.forward_backward(inputs=[FEATURE])
        assert outputs["loss"] == pytest.approx(expected.item(), rel=1e-5)
        losses.append(outputs["loss"])
        model.clip_grad_and_step()
    assert losses[1] < losses[0]
    assert model.calculate_metric(is_training=True)["num_tokens"] == 4


def test_the_preprocessor_and_the_filter_of_the_document_make_rows_to_train_on(tiny_llama_dir):
    rows = [{"source": "Hello", "target": "Hi"}, {"source": "o" * 500, "target": "long"}]
    dataset = Dataset(DatasetMeta(data=rows))
    exec(example(1), {"dataset": dataset})
    assert [row["messages"] for row in dataset] == [
        [
            {"role": "user", "content": "Translate: Hello"},
            {"role": "assistant", "content": "Hi"},
        ]
    ]
    dataset.set_template(Template(tiny_llama_dir))
    dataset.encode()
    assert any(label != -100 for label in dataset[0]["labels"])


def test_the_reward_of_the_document_likes_short_answers():
    names = {}
    exec(example(2), names)
    replies = ("72", "72.0", "73")
    turns = [
        {
            "messages": [{"role": "assistant", "content": f"#### {reply}"}],
            "user_data": [["ground_truth", "72"]],
        }
        for reply in replies
    ]
    right, longer, wrong = names["GSM8KBrevityReward"]()(turns)
    assert right == 1 / 1.007 > longer > wrong == 0
