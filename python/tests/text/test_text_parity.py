"""The tokens and labels of Template against transformers on real tokenizers and real data."""

import pytest
import transformers
from text.conversations import (
    IGNORED,
    MULTI_TURN,
    USER,
    core,
    expect_equal,
    expect_rows_equal,
    prefix_labels,
    read_rows,
    span_labels,
)


def test_gsm8k_has_the_tokens_and_labels_of_transformers(directory, reference, data_dir):
    rows = read_rows(data_dir / "gsm8k_train.jsonl", "question", "answer", step=5)
    expect_rows_equal(directory, reference, rows)


def test_self_cognition_has_the_tokens_and_labels_of_transformers(directory, reference, data_dir):
    rows = read_rows(data_dir / "self_cognition.jsonl", "query", "response")
    expect_rows_equal(directory, reference, rows)


@pytest.mark.soak
def test_the_whole_of_gsm8k_has_the_tokens_and_labels_of_transformers(
    directory, reference, data_dir
):
    expect_rows_equal(
        directory, reference, read_rows(data_dir / "gsm8k_train.jsonl", "question", "answer")
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
