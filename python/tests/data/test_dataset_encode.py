"""Mixing data sets and encoding them; a template's own encode is the reference."""

import json

import pytest
from data_rows import conversation, dataset

from twinkle.errors import InvalidError

pytestmark = pytest.mark.usefixtures("data_built")


def test_sources_in_memory_are_told_apart_after_their_rows_are_gone():
    from twinkle.dataset import Dataset, DatasetMeta

    rows = Dataset(DatasetMeta(data=[{"i": 0}]))
    for i in range(1, 50):  # each list is freed, and the next may lie in its place
        rows.add_dataset(DatasetMeta(data=[{"i": i}]))
    rows.mix_dataset(interleave=False)
    assert [row["i"] for row in rows] == list(range(50))


@pytest.mark.parametrize("kind", ["Dataset", "LazyDataset", "IterableDataset"])
def test_rows_that_are_still_there_name_their_source(kind):
    from twinkle import dataset
    from twinkle.dataset import DatasetMeta

    ours, others = [{"i": 0}], [{"i": 0}]
    rows = getattr(dataset, kind)(DatasetMeta(data=ours))
    rows.add_dataset(DatasetMeta(data=others))
    rows.map(lambda columns: {"j": columns["i"]}, dataset_meta=DatasetMeta(data=others))
    rows.mix_dataset(interleave=False)
    assert [sorted(row) for row in rows] == [["i"], ["i", "j"]]
    with pytest.raises(InvalidError, match="there is no source"):
        getattr(dataset, kind)(DatasetMeta(data=ours)).map(len, dataset_meta=DatasetMeta(data=[]))


def test_sources_are_mapped_apart_and_mixed():
    pytest.importorskip("datasets")
    from datasets import Dataset as Reference
    from datasets import concatenate_datasets, interleave_datasets

    from twinkle.dataset import Dataset, DatasetMeta

    parts = [[{"i": i} for i in range(3)], [{"i": 10 + i} for i in range(2)]]
    metas = [DatasetMeta(data=part) for part in parts]
    references = [Reference.from_list(part) for part in parts]
    for interleave, wanted in (
        (True, interleave_datasets(references)),
        (False, concatenate_datasets(references)),
    ):
        rows = Dataset(metas[0])
        rows.add_dataset(metas[1])
        with pytest.raises(InvalidError, match=r"has 2 sources: call mix_dataset\(\) first"):
            len(rows)
        with pytest.raises(InvalidError, match="choose one for map with dataset_meta="):
            rows.map(lambda columns: columns)
        rows.map(lambda columns: {"j": columns["i"]}, dataset_meta=metas[1])
        rows.mix_dataset(interleave=interleave)
        assert [row["i"] for row in rows] == wanted["i"]
        assert all(("j" in row) == (row["i"] >= 10) for row in rows)
        with pytest.raises(InvalidError, match="map must come before mix_dataset"):
            rows.map(lambda columns: columns)
        with pytest.raises(InvalidError, match="add_dataset must come before mix_dataset"):
            rows.add_dataset(DatasetMeta(data=[]))
    with pytest.raises(InvalidError, match="has been added already"):
        Dataset(metas[0]).add_dataset(metas[0])
    with pytest.raises(InvalidError, match="there is no source"):
        Dataset(metas[0]).map(len, dataset_meta=metas[1])
    with pytest.raises(InvalidError, match="it has no rows"):
        len(Dataset())
    with pytest.raises(InvalidError, match="nothing to mix"):
        Dataset().mix_dataset()


def test_streaming_is_of_a_whole_dataset():
    from twinkle.dataset import Dataset, DatasetMeta, IterableDataset

    rows = Dataset(DatasetMeta(data=[{"i": 0}]), streaming=True)
    assert type(rows) is IterableDataset and list(rows) == [{"i": 0}]
    rows = dataset([{"i": 0}])
    with pytest.raises(InvalidError, match="streaming=True is for all sources"):
        rows.add_dataset(DatasetMeta(data=[{"i": 1}]), streaming=True)
    with pytest.raises(
        InvalidError, match=r"dataset_meta is 'file\.jsonl', it must be a DatasetMet"
    ):
        Dataset("file.jsonl")


@pytest.mark.parametrize("kind", ["Dataset", "LazyDataset"])
def test_sources_and_their_mixture_are_seen_as_rows(kind):
    from twinkle import dataset
    from twinkle.dataset import DatasetMeta

    rows = getattr(dataset, kind)()
    assert rows.dataset is None and rows.datasets == {}
    parts = [[{"i": 0}, {"i": 1}], [{"i": 2}]]
    for part in parts:
        rows.add_dataset(DatasetMeta(data=part))
    assert [list(part) for part in rows.datasets.values()] == parts
    assert list(rows.dataset) == parts[0] and rows.dataset[-1] == {"i": 1}
    rows.mix_dataset(interleave=False)
    assert rows.dataset["i"] == [0, 1, 2] and len(rows.dataset) == 3


def test_a_lazy_datasets_rows_are_seen_without_its_work():
    from twinkle.dataset import DatasetMeta, LazyDataset

    rows = LazyDataset(DatasetMeta(data=[{"i": 3}]))
    rows.map(lambda columns: {"j": columns["i"]})
    assert rows.dataset[0] == {"i": 3} and rows[0] == {"i": 3, "j": 3}
    assert not rows.do_encode and not rows.do_check


def test_encode_keeps_the_row_and_adds_lists(tiny_llama_dir):
    from twinkle.template import Template

    rows = dataset([conversation("I."), conversation("Hello.")])
    with pytest.raises(InvalidError, match=r"encode needs a template: call set_template\(\)"):
        rows.encode()
    rows.set_template("Template", model_id=tiny_llama_dir)
    rows.encode(batched=True, load_from_cache_file=False, num_proc=1)
    for row, answer in zip(rows, ("I.", "Hello."), strict=True):
        feature = Template(tiny_llama_dir).encode(conversation(answer))
        assert {key: row[key] for key in ("messages", "user_data", "id")} == conversation(answer)
        for key in ("input_ids", "labels", "attention_mask", "position_ids"):
            assert type(row[key]) is list and row[key] == feature[key].tolist()
        assert row["length"] == len(row["input_ids"])
    with pytest.raises(InvalidError, match="encode: unknown argument 'add_generation'"):
        rows.encode(add_generation=True)


def test_a_generation_prompt_is_added_on_request(tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    question = {"messages": [{"role": "user", "content": "Who are you?"}]}
    rows = dataset([question])
    rows.set_template("Template", model_id=tiny_llama_dir)
    rows.encode(add_generation_prompt=True)
    wanted = transformers.AutoTokenizer.from_pretrained(tiny_llama_dir).apply_chat_template(
        question["messages"], add_generation_prompt=True, return_dict=False
    )
    assert rows[0]["input_ids"] == wanted


def test_a_row_that_cannot_be_encoded_is_named_or_dropped_by_check(tiny_llama_dir, tmp_path):
    file = tmp_path / "rows.jsonl"
    good = json.dumps(conversation("I."))
    file.write_text(f'{good}\n\n{{"query": "q"}}\n{good}\n')
    rows = dataset(file)
    rows.set_template("Template", model_id=tiny_llama_dir)
    with pytest.raises(InvalidError, match=r"rows\.jsonl line 3: .*messages"):
        rows.encode()
    assert len(rows) == 3 and "input_ids" not in rows[0]
    rows.check()
    rows.encode()
    assert [row["id"] for row in rows] == [2, 2]


def test_a_template_in_python_is_called_and_empty_rows_are_dropped(tiny_llama_dir):
    from twinkle.template import Template

    class Mine(Template):
        def batch_encode(self, trajectories, add_generation_prompt=False):
            kept = [row for row in trajectories if row["id"] != 2]
            return [{**row, "input_ids": [1] * row["id"]} for row in kept]

        def check(self, trajectory):
            return trajectory if trajectory["id"] != 3 else None

    rows = dataset([conversation("x" * n) for n in range(5)])
    rows.set_template(Mine, model_id=tiny_llama_dir)
    rows.check()
    rows.encode()
    assert [row["input_ids"] for row in rows] == [[1], [1, 1, 1, 1]]


def test_both_sides_of_a_pair_are_encoded(tiny_llama_dir):
    rows = dataset([{"prompt": "Who?", "answer_zh": "I.", "answer_en": "Hello."}])
    rows.map("EmojiDPOProcessor")
    rows.set_template("Template", model_id=tiny_llama_dir)
    rows.encode()
    single = dataset([conversation("Hello.")])
    single.set_template("Template", model_id=tiny_llama_dir)
    single.encode()
    assert rows[0]["negative"]["input_ids"] == single[0]["input_ids"]


def test_a_dataset_never_becomes_empty(tiny_llama_dir, tmp_path):
    from twinkle.dataset import DatasetMeta, LazyDataset
    from twinkle.template import Template

    class Choosy(Template):
        def check(self, row):
            return None

    (tmp_path / "empty.jsonl").write_text("\n")
    for source, text in (
        ({"source": []}, "data has no rows$"),
        ({"source": str(tmp_path / "empty.jsonl")}, r"empty\.jsonl has no rows$"),
        ({"source": [{"i": 1}], "data_slice": []}, "data has no rows, or data_slice selects none"),
    ):
        with pytest.raises(InvalidError, match=f"^dataset: .*{text}"):
            dataset(**source)

    def nobody(row):
        return False

    talks = [conversation("yes"), conversation("no")]
    for rows in (dataset(talks), LazyDataset(DatasetMeta(data=talks))):
        with pytest.raises(InvalidError, match="nobody leaves none of the 2 rows; the first is "):
            rows.filter(nobody)
        assert len(rows) == 2
    rows = dataset(talks)
    with pytest.raises(InvalidError, match="<lambda> leaves none of the 2 rows; the first is "):
        rows.map(lambda columns: [], remove_columns=["messages", "user_data", "id"])
    for template, options in ((Template, {"max_length": 2}), (Choosy, {})):
        rows.set_template(template, model_id=tiny_llama_dir, **options)
        with pytest.raises(InvalidError, match="check leaves none of the 2 rows; the first is "):
            rows.check()
    assert len(rows) == 2


def test_a_dataset_without_tokens_is_not_encoded(tiny_llama_dir):
    long = dataset([conversation("yes")])
    long.set_template(
        "Template", model_id=tiny_llama_dir, max_length=2, truncation_strategy="delete"
    )
    with pytest.raises(
        InvalidError, match="none of the 1 rows, since none of them encodes to a tok"
    ):
        long.encode()
    assert len(long) == 1


@pytest.mark.parametrize(
    ("row", "columns", "processor"),
    [
        ({"instruction": "a", "input": "", "output": "b"}, "instruction, output", "Alpaca"),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
         "conversations", "ShareGPT"),
        ({"messages": [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]},
         "messages", "ShareGPT"),
        ({"prompt": "a", "completion": "b"}, "prompt, completion", "PromptCompletion"),
        ({"query": "a", "response": "b"}, "query, response", "PromptCompletion"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "chosen, rejected", "Preference"),
    ],
)  # fmt: skip
def test_a_row_of_a_known_form_is_read_as_its_preprocessor_does(
    row, columns, processor, tiny_llama_dir, logged
):
    from twinkle.dataset import DatasetMeta, LazyDataset

    rows, named = dataset([row] * 2), dataset([row] * 2)
    lazy = LazyDataset(DatasetMeta(data=[row]))
    named.map(f"{processor}Processor")
    for encoded in (rows, named, lazy):
        encoded.set_template("Template", model_id=tiny_llama_dir)
        encoded.encode()
    assert logged == [f"memory: {columns}: read as {processor}Processor"]
    sides = ("positive", "negative") if processor == "Preference" else (None,)
    for side in sides:
        wanted, *others = (r[0][side] if side else r[0] for r in (named, rows, lazy))
        for found in others:
            assert found["messages"] == wanted["messages"]
            assert list(found["input_ids"]) == list(wanted["input_ids"])
            assert list(found["labels"]) == list(wanted["labels"])


def test_a_row_of_no_form_or_of_two_is_refused_with_what_it_has(tiny_llama_dir):
    for row, text in (
        ({"text": "a"}, "the row has text: texts are for pretraining, "),
        ({"prompt": "a", "completion": "b", "query": "c", "response": "d"},
         "the row can be prompt, completion: read as PromptCompletionProcessor, or query, "),
    ):  # fmt: skip
        rows = dataset([row])
        rows.set_template("Template", model_id=tiny_llama_dir)
        with pytest.raises(InvalidError, match=text):
            rows.encode()
        with pytest.raises(InvalidError, match=text):
            rows.template.encode(row)
    with pytest.raises(InvalidError, match="makes messages of them"):  # the reply is to come
        rows.template.encode({"prompt": "a", "completion": "b"}, add_generation_prompt=True)
