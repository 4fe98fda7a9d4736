"""tokenizer_id: where a model takes its template from."""

import pytest

from twinkle import LoraConfig
from twinkle.model import TransformersModel

ROW = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ', as it is called here: ' "
    "+ message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant, as it is called here: ' }}{% endif %}"
)


@pytest.fixture
def tokenizer_dir(tiny_llama_dir, tmp_path):
    """The model's tokenizer with another chat template, and no model beside it."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_llama_dir)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


@pytest.mark.parametrize("prepare", [
    lambda model: None,
    lambda model: model.set_template("Template"),
    lambda model: model.add_adapter_to_model("a", LoraConfig(r=2)),
])  # fmt: skip
def test_rows_are_encoded_by_the_tokenizer_of_tokenizer_id(
    engine_built, tiny_llama_dir, tokenizer_dir, prepare
):
    transformers = pytest.importorskip("transformers")
    lengths = []
    for tokenizer_id in (None, tokenizer_dir):
        model = TransformersModel(model_id=tiny_llama_dir, tokenizer_id=tokenizer_id)
        prepare(model)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_id or tiny_llama_dir)
        expected = tokenizer(
            tokenizer.apply_chat_template(ROW["messages"], tokenize=False),
            add_special_tokens=False,
        )["input_ids"]
        (encoded,) = model._group().get_template().batch_encode([ROW])
        assert list(encoded["input_ids"]) == expected
        lengths.append(model.forward_only(inputs=[ROW])["logps"].shape[1])
        assert lengths[-1] == len(expected)
    assert lengths[0] != lengths[1]
