"""Qwen3_5Template on Qwen3.5's own tokenizer, and on Qwen3's with Qwen3's chat template, as
transformers renders and labels conversations with reasoning, which is kept or dropped."""

import functools
import re

import pytest
import transformers
from text import qwen3_5
from text.conversations import IGNORED, MULTI_TURN, USER, expect_equal, npm_tokenizer, span_labels

from twinkle.template import Qwen3_5Template

REASONED = {"role": "assistant", "content": "4", "reasoning_content": "2 + 2\nis 4"}
INLINE = {"role": "assistant", "content": "<think>\n2 + 2\n</think>\n\n4"}
PLAIN = {"role": "assistant", "content": "5"}
CONVERSATIONS = {
    "reasoned": [USER, REASONED],
    "inline": [USER, INLINE],
    "plain": [USER, PLAIN],
    "dropped": [USER, REASONED, USER, PLAIN],
    "one_of_two": [USER, INLINE, USER, REASONED],
    "without": MULTI_TURN,
}


@pytest.fixture(scope="module")
def newest(tmp_path_factory):
    made = tmp_path_factory.mktemp("qwen3_5")
    qwen3_5.write(made)
    return made


@pytest.fixture(scope="module", params=["qwen3.5", "qwen3"])
def folder(request):
    if request.param == "qwen3":
        return npm_tokenizer("tokenizer-qwen3")
    return request.getfixturevalue("newest")


@pytest.fixture(scope="module")
def reference(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


@functools.cache
def template_of(folder, **options):
    """A template is not changed by what it renders: each is read once."""
    return Qwen3_5Template(str(folder), **options)


def prompted(reference, messages, thinking):
    options = {"add_generation_prompt": True, "enable_thinking": thinking}
    text = reference.apply_chat_template(messages, tokenize=False, **options)
    return text, reference(text, add_special_tokens=False)["input_ids"]


def answers(reference, thinking):
    """A pattern of what the model wrote: an answer without what the prompt for it says already, of
    which the answer may have the first lines."""
    prompt, _ = prompted(reference, [USER], thinking)
    said = ""
    for line in reversed(prompt.rpartition("assistant\n")[2].splitlines(keepends=True)):
        said = f"(?:{re.escape(line)}{said})?"
    return rf"<\|im_start\|>assistant\n{said}(.*?<\|im_end\|>\n)"


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_answers_are_rendered_and_trained_as_by_transformers(folder, reference, name, thinking):
    messages = CONVERSATIONS[name]
    feature = template_of(folder, enable_thinking=thinking).encode({"messages": messages})
    ids, labels = span_labels(
        reference, messages, answers(reference, thinking), enable_thinking=thinking
    )
    assert any(label != IGNORED for label in labels)
    expect_equal(feature, ids, labels)


@pytest.mark.parametrize("thinking", [True, False])
def test_a_prompt_opens_the_reasoning_or_leaves_it_out(folder, reference, thinking):
    template = template_of(folder, enable_thinking=thinking)
    for messages in ([USER], [USER, REASONED, USER], MULTI_TURN[:-1]):
        text, ids = prompted(reference, messages, thinking)
        assert text.endswith("</think>\n\n") is not thinking
        feature = template.encode({"messages": messages}, add_generation_prompt=True)
        expect_equal(feature, ids, [IGNORED] * len(ids))


def test_reasoning_is_kept_behind_the_last_question_alone(folder):
    template = template_of(folder)

    def text(messages):
        return template.decode(template.encode({"messages": messages})["input_ids"])

    for answer in (REASONED, INLINE):
        assert "2 + 2" in text([USER, answer])
        assert "2 + 2" not in text([USER, answer, USER, PLAIN])


def test_the_tokenizer_is_the_packages(newest):
    tokenizer = template_of(newest).tokenizer
    assert tokenizer.vocab_size == 248044 + 33
    assert (tokenizer.pad_id, tokenizer.eos_id) == (248044, 248046)
    # Its pattern keeps a letter and its marks together, where Qwen3's cuts them apart.
    older = template_of(npm_tokenizer("tokenizer-qwen3")).tokenizer
    assert len(tokenizer.batch_encode(["हिन्दी"])[0]) < len(older.batch_encode(["हिन्दी"])[0])
