"""Tool calls beside a content that is missing, None, empty or a text: what transformers writes is
written. Where a template fails on a missing content in transformers and writes calls beside another
that says nothing (None in DeepSeek's, which transformers drops before it renders; an empty text in
Qwen3's), this is written; where it writes none at all, it fails here, too.
"""

import json

import jinja2
import pytest
import transformers
from text.conversations import IGNORED, USER, core, npm_tokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template

from twinkle.errors import InvalidError

TEMPLATES = ["smollm2", *(f"tokenizer-{name}" for name in (
    "qwen3", "qwen2_5", "llama3_2", "deepseek_v3"))]  # fmt: skip
# These write arguments with tojson: of a text that would be a text within JSON, so it is parsed.
WRITE_JSON = ("tokenizer-qwen2_5", "tokenizer-llama3_2")
MISSING = object()
CONTENTS = {"missing": MISSING, "none": None, "empty": "", "text": "Let me see."}
ARGUMENTS = {"city": "Köln", "days": 1.5}


def reply(content, arguments, count):
    message = {"role": "assistant"}
    if content is not MISSING:
        message["content"] = content
    functions = [{"name": f"f{i}", "arguments": arguments} for i in range(count)]
    return {**message, "tool_calls": [{"type": "function", "function": f} for f in functions]}


@pytest.fixture(scope="module", params=TEMPLATES)
def folder(request):
    if request.param == "smollm2":
        return request.getfixturevalue("smollm2_dir")
    return npm_tokenizer(request.param)


@pytest.fixture(scope="module")
def both(folder):
    """transformers' tokenizer and our template, each read once."""
    return transformers.AutoTokenizer.from_pretrained(folder), core.Template(str(folder))


def by_transformers(reference, messages):
    """The text, or None where the template fails."""
    template = _compile_jinja_template(reference.chat_template)
    try:
        if messages[1].get("content", "") is None:
            return template.render(messages=messages, bos_token=reference.bos_token)
        return reference.apply_chat_template(messages, tokenize=False)
    except (TypeError, jinja2.TemplateError):
        return None


def expected_text(reference, content, arguments, count, end):
    """The first of the equal contents that the template writes calls beside."""
    contents = (MISSING, None, "") if content in (MISSING, None) else (content,)
    for same in contents:
        text = by_transformers(reference, [USER, reply(same, arguments, count), *end])
        if text is not None and (len(contents) == 1 or same is MISSING or "f0" in text):
            return text
    return None


@pytest.mark.parametrize("form", ["object", "text"])
@pytest.mark.parametrize("name", CONTENTS)
def test_calls_are_written_or_refused_as_by_transformers(folder, both, name, form):
    reference, template = both
    arguments = json.dumps(ARGUMENTS, separators=(",", ":")) if form == "text" else ARGUMENTS
    parsed = ARGUMENTS if any(name in str(folder) for name in WRITE_JSON) else arguments
    rest = [{"role": "tool", "content": "21"}, {"role": "assistant", "content": "21 °C"}]
    for count in (1, 2):
        for end in ([], rest[:1], rest):
            given = [USER, reply(CONTENTS[name], arguments, count), *end]
            text = expected_text(reference, CONTENTS[name], parsed, count, end)
            if text is None:
                with pytest.raises(InvalidError, match="the chat template failed"):
                    template.render({"messages": given})
            else:
                assert template.render({"messages": given}) == text


def test_of_the_real_templates_some_write_calls_and_some_refuse_them():
    """The test above compares rows that do not all fail."""
    folder = npm_tokenizer("tokenizer-deepseek_v3")
    template = core.Template(str(folder))
    arguments = json.dumps(ARGUMENTS)
    row = {"messages": [USER, reply(None, arguments, 1)]}
    text = template.render(row)
    assert template.render({"messages": [USER, reply(MISSING, arguments, 1)]}) == text
    begin = text.index("<｜tool▁calls▁begin｜>")
    assert f"<｜tool▁sep｜>f0\n```json\n{arguments}\n```<｜tool▁call▁end｜>" in text[begin:]
    trained = [label for label in template.encode(row)["labels"].tolist() if label != IGNORED]
    assert template.decode(trained) == text[begin:]
    with pytest.raises(InvalidError, match="a message of role assistant has no content"):
        template.render({"messages": [USER, {"role": "assistant"}]})
    with pytest.raises(InvalidError, match="the chat template failed"):
        template.render({"messages": [USER, reply(None, ARGUMENTS, 1)]})
