"""Tools, reasoning, generation tags and other models' chat templates, as transformers renders and
labels them."""

import json
import shutil

import pytest
import transformers
from text.conversations import (
    IGNORED,
    MULTI_TURN,
    TOOLS,
    USER,
    core,
    expect_equal,
    npm_tokenizer,
    prefix_labels,
    span_labels,
)


def tool_conversation():
    call = {"name": "get_weather", "arguments": {"city": "Köln", "days": 1e16, "exact": None}}
    return [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": '{"temp": 21.0}', "tool_call_id": None},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "21 °C & sunny."},
        {"role": "user", "content": "Danke"},
        {"role": "assistant", "content": "Bitte", "reasoning_content": "Polite."},
    ]


def test_tools_and_tool_calls_are_rendered_as_by_transformers(qwen3):
    reference = transformers.AutoTokenizer.from_pretrained(qwen3)
    template = core.Template(str(qwen3))
    messages = tool_conversation()
    pattern = r"<\|im_start\|>assistant\n(.*?<\|im_end\|>\n)"
    for length in (2, 5, 6, 7):
        row = {"messages": messages[:length], "tools": TOOLS}
        text = reference.apply_chat_template(row["messages"], tools=TOOLS, tokenize=False)
        assert template.render(row) == text
        ids, labels = span_labels(reference, row["messages"], pattern, tools=TOOLS)
        expect_equal(template.encode(row), ids, labels)
    as_texts = json.loads(json.dumps(messages))
    function = as_texts[1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])
    text = reference.apply_chat_template(as_texts, tools=TOOLS, tokenize=False)
    row = {"messages": as_texts, "tools": json.dumps(TOOLS)}
    assert template.render(row) == text


def test_reasoning_is_rendered_and_trained_as_by_transformers(qwen3):
    reference = transformers.AutoTokenizer.from_pretrained(qwen3)
    template = core.Template(str(qwen3))
    answers = [
        {"role": "assistant", "content": "4", "reasoning_content": "2 + 2\nis 4"},
        {"role": "assistant", "content": "4", "thinking": "2 + 2"},
        {"role": "assistant", "content": "<think>\n2 + 2\n</think>\n\n4"},
        {"role": "assistant", "content": "4"},
    ]
    for answer in answers:
        messages = [USER, answer]
        ids, labels = prefix_labels(reference, messages, enable_thinking=True)
        expect_equal(template.encode({"messages": messages}), ids, labels)
        # Followed by another turn the old reasoning is gone, and the turn is still labelled.
        longer = [*messages, USER, {"role": "assistant", "content": "5"}]
        ids, labels = span_labels(
            reference, longer, r"<\|im_start\|>assistant\n(.*?<\|im_end\|>\n)"
        )
        expect_equal(template.encode({"messages": longer}), ids, labels)


def test_reasoning_goes_into_think_tags_where_the_template_does_not_read_it(smollm2_dir):
    template = core.Template(str(smollm2_dir))
    split = {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}
    whole = {"role": "assistant", "content": "<think>\n2 + 2\n</think>\n\n4"}
    one = template.encode({"messages": [USER, split]})
    other = template.encode({"messages": [USER, whole]})
    assert one["input_ids"].tolist() == other["input_ids"].tolist()
    assert "<think>\n2 + 2\n</think>" in template.decode(one["input_ids"])


GENERATION_TEMPLATES = {
    "with_footer": """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}
        {{- '\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}""",
    "own_lines": """{% for message in messages %}
<|im_start|>{{ message.role }}
    {% if message.role == 'assistant' %}
    {% generation %}
{{ message.content }}<|im_end|>
    {% endgeneration %}
    {% else %}
{{ message.content }}<|im_end|>
    {% endif %}
{% endfor %}""",
    "bare_content": """{% for message in messages %}{% if message.role == 'assistant' %}
A:{% generation %}{{ ' ' + message.content }}{% endgeneration %}{% else %}
Q: {{ message.content }}{% endif %}{% endfor %}""",
    "calls_only": """{{ bos_token }}{% for message in messages %}{{ message.role }}:
{%- if message.role == 'assistant' and loop.last %}
{%- generation -%}
    {% set text = message.content | trim %} {{ text | tojson }}
{%- endgeneration -%}
{%- else %} {{ message['content'].strip() | upper }}{% endif %}{{ '\n' }}{% endfor %}""",
}


@pytest.mark.parametrize("name", GENERATION_TEMPLATES)
def test_generation_tags_give_the_assistant_mask_of_transformers(directory, tmp_path, name):
    for file in directory.iterdir():
        if file.name.startswith("tokenizer"):
            shutil.copy(file, tmp_path)
    source = GENERATION_TEMPLATES[name]
    (tmp_path / "chat_template.jinja").write_text(source, encoding="utf-8")
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert reference.chat_template == source
    template = core.Template(str(tmp_path))
    for messages in (MULTI_TURN, MULTI_TURN[1:3], MULTI_TURN[3:5]):
        encoded = reference.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        ids = encoded["input_ids"]
        labels = [
            token if mask else IGNORED
            for token, mask in zip(ids, encoded["assistant_masks"], strict=True)
        ]
        assert any(label != IGNORED for label in labels)
        expect_equal(template.encode({"messages": messages}), ids, labels)


@pytest.mark.parametrize(
    "name", ["tokenizer-qwen2_5", "tokenizer-llama3_2", "tokenizer-deepseek_v3"]
)
def test_other_models_templates_render_as_by_transformers(name):
    folder = npm_tokenizer(name)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    template = core.Template(str(folder))
    # Strings, not tokens, of plain conversations: what the template engine is answerable for.
    for messages in (MULTI_TURN, MULTI_TURN[1:3]):
        text = reference.apply_chat_template(messages, tokenize=False)
        assert template.render({"messages": messages}) == text
        feature = template.encode({"messages": messages})
        trained = [label for label in feature["labels"].tolist() if label != IGNORED]
        written = template.decode(trained, skip_special_tokens=True)
        for message in messages:
            if message["role"] == "assistant":
                assert message["content"].strip() in written
            elif message["role"] == "user":
                assert message["content"].strip() not in written
