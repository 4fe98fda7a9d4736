"""A str may hold half of a surrogate pair, which UTF-8 and so the core cannot: it is refused by the
name of its field, and of its row."""

import pytest

from twinkle.core import core
from twinkle.data_format import SamplingParams
from twinkle.dataset import Dataset, DatasetMeta, LazyDataset
from twinkle.errors import InvalidError
from twinkle.template import Template

pytestmark = pytest.mark.usefixtures("data_built")

BAD = "ab\ud800c"
CAUSE = "has a lone surrogate, U\\+D800, at character 2, which is no text: leave it out, or decode"


def talk(text):
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "b"}]}


def test_templates_name_the_field_and_the_row(tiny_llama_dir):
    template = Template(str(tiny_llama_dir))
    for call in (template.encode, template.render):
        with pytest.raises(InvalidError, match=rf"^text: messages\[0\]\.content {CAUSE}"):
            call(talk(BAD))
    with pytest.raises(InvalidError, match=rf"^text: row 1: messages\[0\]\.content {CAUSE}"):
        template.batch_encode([talk("a"), talk(BAD)])
    with pytest.raises(InvalidError, match=r"^text: tools\[0\]: a key has a lone surrogate"):
        template.encode({**talk("a"), "tools": [{BAD: 1}]})
    with pytest.raises(InvalidError, match=rf"^template: default_system {CAUSE}"):
        Template(str(tiny_llama_dir), default_system=BAD)
    assert template.check(talk(BAD)) is None
    assert template.encode({**talk("😀"), "id": BAD})["id"] == BAD  # nothing reads an id


def test_tokenizers_name_the_text(tiny_llama_dir):
    tokenizer = Template(str(tiny_llama_dir)).tokenizer
    with pytest.raises(InvalidError, match=rf"^text: the text {CAUSE}"):
        tokenizer.encode(BAD)
    with pytest.raises(InvalidError, match=rf"^text: texts\[1\] {CAUSE}"):
        tokenizer.batch_encode(["a", BAD])
    assert tokenizer.batch_encode(["a", "b"]) == [tokenizer.encode("a"), tokenizer.encode("b")]


def test_stop_strings_are_texts():
    with pytest.raises(InvalidError, match=rf"^sampler: stop {CAUSE}"):
        SamplingParams(stop=["a", BAD])


def test_rows_name_the_field_and_the_file(tmp_path):
    with pytest.raises(InvalidError, match=rf"^data: row 1\.a {CAUSE}"):
        Dataset(DatasetMeta(data=[{"a": "x"}, {"a": BAD}]))
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n\n{"a": 2}\n')
    rows = Dataset(DatasetMeta(str(file)))
    with pytest.raises(InvalidError, match=rf"^data: .*a\.jsonl line 3: row\.b {CAUSE}"):
        rows.map(lambda row: {"b": BAD if row["a"] == 2 else "x"}, batched=False)
    assert list(rows) == [{"a": 1}, {"a": 2}]
    file.write_text('{"a": "\\ud800"}\n')
    with pytest.raises(InvalidError, match=r"a\.jsonl line 1 column \d+: "):
        Dataset(DatasetMeta(str(file)))
    with pytest.raises(InvalidError, match=r"^data: 2 rows have 1 origins"):
        core().Dataset.of([{"a": 1}]).replaced([{}, {}], [0])


def test_rows_that_are_saved_while_they_are_read_name_the_field(tmp_path):
    rows = LazyDataset(DatasetMeta(data=[{"a": "x"}]))
    rows.map(lambda row: {"b": BAD}, batched=False)
    rows.save_as(tmp_path / "a.jsonl", mode="training")
    with pytest.raises(InvalidError, match=rf"^data: the row\.b {CAUSE}"):
        rows[0]
