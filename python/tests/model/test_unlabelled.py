"""An input that has nothing to learn from is warned of."""

import pytest

from twinkle import LoraConfig, TransformersModel, get_logger
from twinkle.core import core
from twinkle.engine import Engine
from twinkle.engine.batch import warn_of_unlabelled

pytestmark = pytest.mark.usefixtures("engine_built")
LEARNT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
LOST = {"messages": [{"role": "user", "content": "a"}, {"role": "judge", "content": "b"}]}
TEXT = (
    "model: inputs[1] has no label to learn from: the roles of its messages are 'user', 'judge', "
    "only 'assistant' is trained; further ones are not reported"
)


def test_an_input_without_labels_is_warned_of_once(tiny_llama_dir, logged):
    model = TransformersModel(model_id=tiny_llama_dir)
    model.add_adapter_to_model("default", LoraConfig(r=2, target_modules="all-linear"))
    tenant = Engine(tiny_llama_dir).tenant("me", lora_config=LoraConfig(r=2))
    for forward_backward in (
        lambda rows: model.forward_backward(inputs=rows),
        lambda rows: tenant.forward_backward(rows).result(),
    ):
        get_logger()._seen.discard("model: unlabelled")
        logged.clear()
        forward_backward([LEARNT])
        assert logged == []
        forward_backward([LEARNT, LOST])
        forward_backward([LEARNT, LOST])
        assert logged == [TEXT]


def test_the_warning_names_the_roles_that_are_texts(logged):
    messages = [{"role": ["a"]}, {"role": "gpt"}, {"role": None}, {}, "user", {"role": {}}]
    get_logger()._seen.discard("model: unlabelled")
    feature = {"input_ids": [1], "labels": [-100], "messages": messages}
    warn_of_unlabelled(core().Batch([feature]))
    (text,) = logged
    assert "the roles of its messages are 'gpt', only 'assistant' is trained" in text
