"""Template's work beyond transformers: key rounds, batches, sampled replies, its own errors."""

import json
import os
import shutil
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


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_other_threads_take_their_part_of_a_batch(directory):
    template = core.Template(str(directory))
    rows = [{"messages": MULTI_TURN}] * 2000
    whole, own = time.process_time(), time.thread_time()  # CPU time, whatever else runs
    assert len(template.batch_encode(rows)) == len(rows)
    whole, own = time.process_time() - whole, time.thread_time() - own
    assert whole - own > 0.1 * whole, (whole, own)


def test_sampled_tokens_are_appended_as_trained_ones(directory, reference):
    template = core.Template(str(directory))
    prompt = template.encode({"messages": [USER]}, add_generation_prompt=True)
    reply = reference("Sunny.", add_special_tokens=False)["input_ids"] + [reference.eos_token_id]
    row = template.concat_input_feature(prompt, reply)
    ids = prompt["input_ids"].tolist()
    expect_equal(row, ids + reply, [IGNORED] * len(ids) + reply)
    assert row["messages"] == [USER, {"role": "assistant", "content": "Sunny."}]
    assert prompt["messages"] == [USER]


def test_a_row_is_rendered_whole_and_not_once_per_turn(directory, tmp_path):
    # text/work_test.cpp counts; here the real templates fail on all prefixes but the two shortest.
    row = {"messages": MULTI_TURN[1:5] * 8}
    for file in directory.iterdir():
        if not file.name.endswith(".safetensors"):
            shutil.copy(file, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    source = tmp_path / "chat_template.jinja"
    text = source.read_text(encoding="utf-8") if source.exists() else config["chat_template"]
    prefix = "{% if messages | length > 2 and messages | length < 32 %}"
    prefix += "{{ raise_exception('a prefix') }}{% endif %}"
    source.write_text(prefix + text, encoding="utf-8")
    counting, template = core.Template(str(tmp_path)), core.Template(str(directory))
    assert counting.encode(row)["labels"].tolist() == template.encode(row)["labels"].tolist()
    with pytest.raises(InvalidError, match="a prefix"):
        counting.encode({"messages": row["messages"][:30]})


def test_python_values_without_a_json_form_are_named(directory):
    template = core.Template(str(directory))
    with pytest.raises(InvalidError, match=r"messages\[0\].content is a set"):
        template.encode({"messages": [{"role": "user", "content": {1}}]})
    with pytest.raises(ValueError, match="does not fit in 64 bits"):
        template.encode({"messages": [USER], "tools": [1 << 70]})
