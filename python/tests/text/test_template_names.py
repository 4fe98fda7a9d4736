"""The methods of Template beside encode and decode: trajectories in standard form, tool calls of
replies, and what would be done with media."""

import numpy as np
import pytest

from twinkle.errors import InvalidError, NotAvailableError
from twinkle.template import Template

pytestmark = pytest.mark.usefixtures("engine_built")

USER = {"role": "user", "content": "Who?"}


@pytest.fixture(scope="module")
def template(tiny_llama_dir):
    return Template(tiny_llama_dir, default_system="Be kind.")


def test_a_trajectory_in_standard_form_has_texts_thoughts_and_arguments(template):
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, "b"], "name": None},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nNova", "tool_calls": [call]},
            {"role": "assistant", "content": "x </think> y", "reasoning_content": "z"},
            {"role": "user", "content": "<think>a</think>b"},
            {"role": "assistant", "tool_calls": '[{"name": "g"}]'},
            {"role": "assistant", "content": None, "tool_calls": [{"name": "g"}]},
        ],
        "id": 7,
    }
    before = repr(row)
    made = template.format_trajectory(row)
    assert made == {
        "messages": [
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": "Nova", "reasoning_content": "hm",
             "tool_calls": [{"type": "function",
                             "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "assistant", "content": "x </think> y", "reasoning_content": "z"},
            {"role": "user", "content": "<think>a</think>b"},
            {"role": "assistant", "tool_calls": [{"name": "g"}]},
            {"role": "assistant", "tool_calls": [{"name": "g"}]},
        ],
        "id": 7,
    }  # fmt: skip
    assert repr(row) == before
    assert template.format_trajectory(made) == made


def test_the_standard_form_encodes_as_the_row_itself(template):
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nNova"},
        ]
    }
    for added in (False, True):
        made = template.format_trajectory(row, add_default_system=added)
        assert made["messages"][0]["role"] == ("system" if added else "user")
        assert template.render(made) == template.render(row)
        assert template.encode(made)["labels"].tolist() == template.encode(row)["labels"].tolist()


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (None, "field 'messages' is null, it must be a list that is not empty"),
        ([], r"field 'messages' is \[\], it must be a list"),
        ("hi", "field 'messages' is \"hi\", it must be a list"),
        ([1], r"field 'messages\[0\]' is not an object with role and content"),
        ([{"content": "a"}], r"field 'messages\[0\]\.role' is missing or not a string"),
        ([{"role": "user", "content": [{"type": "image"}]}],
         r"field 'messages\[0\]\.content' has a part .*image.*, this template reads text only"),
        ([{"role": "user", "content": [3]}], "has a part 3, this template reads text only"),
        ([{"role": "assistant", "tool_calls": "no"}],
         r"field 'messages\[0\]\.tool_calls' is \"no\", it must be a list of calls, or its JSON"),
        ([{"role": "assistant", "tool_calls": [1]}], r"tool_calls\[\]' is 1, it must be an object"),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": "no"}}]}],
         r"tool_calls\[\]\.function\.arguments' is \"no\", it must be the JSON text of an object"),
    ],
)  # fmt: skip
def test_what_has_no_standard_form_is_named(template, messages, text):
    with pytest.raises(InvalidError, match=text):
        template.format_trajectory({"messages": messages})


@pytest.mark.parametrize("name", ["encode", "render", "check", "format_trajectory"])
def test_the_messages_of_one_chat_are_told_to_be_a_row(template, name):
    with pytest.raises(InvalidError, match=r"one chat's list of messages: pass \{\"messages\": \["):
        getattr(template, name)([USER])


def test_tool_calls_of_a_reply(template):
    text = 'Yes. <tool_call>{"name": "f", "arguments": {"a": [1]}}</tool_call>  '
    assert template.parse_tool_call(text) == [
        {"type": "function", "function": {"name": "f", "arguments": {"a": [1]}}}
    ]
    assert template.clean_tool_call(text) == "Yes."
    for nothing in ("No.  ", "", None):
        assert template.parse_tool_call(nothing) == []
        assert template.clean_tool_call(nothing) == (nothing or "").rstrip()
    with pytest.raises(InvalidError, match="decoded is 3, it must be a text"):
        template.parse_tool_call(3)


def test_of_text_nothing_is_prepared_for_other_engines_and_media_are_refused(template):
    feature = template.encode({"messages": [USER]}, add_generation_prompt=True)
    ids = feature["input_ids"]
    assert template.get_vllm_input_ids(ids) == ids.tolist()
    positions = template.set_mm_position_ids(feature)
    assert positions.dtype == np.int64
    np.testing.assert_array_equal(positions, feature["position_ids"])
    arguments = ((1,), {"input_ids": ids})
    assert template.pre_forward_hook(None, *arguments) == arguments
    assert not template.is_mm
    for kind in ("image", "video", "audio"):
        with pytest.raises(NotAvailableError, match=f"{kind}s need a multimodal model"):
            getattr(template, f"preprocess_{kind}")("a.png")
        with pytest.raises(NotAvailableError, match=f"{kind}s need a multimodal model"):
            getattr(template, f"preprocess_{kind}s")(["a.png"])
        assert getattr(template, f"preprocess_{kind}s")([]) == []


def test_rows_and_columns(template):
    assert template.map_col_to_row({"a": [1, 2]}) == [{"a": 1}, {"a": 2}]
    assert template.map_row_to_col([{"a": 1}, {"b": 2}]) == {"a": [1, None], "b": [None, 2]}


@pytest.mark.parametrize("name", ["encode", "batch_encode", "decode", "batch_decode"])
def test_unknown_arguments_are_named(template, name):
    given = {"encode": {"messages": [USER]}}.get(name, [])
    with pytest.raises(InvalidError, match=f"template: {name}: unknown argument 'padding'"):
        getattr(template, name)(given, padding=True)


@pytest.mark.parametrize("field", ["input_ids", "labels", "new_tokens"])
@pytest.mark.parametrize("ids", [np.array([1, 2**63], np.uint64), [2**63, 2**63], [1, 2**64]])
def test_ids_beyond_64_bits_with_a_sign_are_named(template, field, ids):
    values = {"input_ids": [1, 2], "labels": [1, 2], "new_tokens": [1, 2], field: ids}
    with pytest.raises(InvalidError, match=f"template: {field} is .*, it must be one sequence of"):
        template.concat_input_feature(values, values.pop("new_tokens"))
