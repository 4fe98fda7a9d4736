"""What Template does beyond transformers: key rounds, batches, sampled replies, its own errors."""

import time

import pytest
from text.conversations import IGNORED, MULTI_TURN, USER, core, expect_equal

from twinkle.errors import InvalidError


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
