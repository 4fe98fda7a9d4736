"""Datasets, preprocessors and loaders; `datasets` and `transformers` are the references."""

import json
import math
import random

import pytest

from twinkle.core import core
from twinkle.errors import InvalidError, NotAvailableError, NotFoundError


@pytest.fixture(scope="module", autouse=True)
def data_built():
    """Skips where the compiled module is not there."""
    try:
        if not hasattr(core(), "Loader"):
            pytest.skip("twinkle._core has no data")
    except NotAvailableError as error:
        pytest.skip(str(error))


def dataset(source, **meta):
    from twinkle.dataset import Dataset, DatasetMeta

    if isinstance(source, (list, dict)) or callable(source):
        return Dataset(DatasetMeta(data=source, **meta))
    return Dataset(DatasetMeta(source, **meta))


def numbers(count):
    return [{"i": i} for i in range(count)]


def conversation(answer):
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "user_data": [["k", 1]], "id": len(answer)}


# ---- reading


@pytest.mark.parametrize(
    "name", ["gsm8k_train.jsonl", "self_cognition.jsonl", "alpaca_en_demo.json"]
)
def test_reads_what_the_datasets_package_reads(data_dir, name, tmp_path):
    reference = pytest.importorskip("datasets").load_dataset(
        "json", data_files=str(data_dir / name), split="train", cache_dir=str(tmp_path)
    )
    ours = dataset(data_dir / name)
    assert len(ours) == len(reference)
    assert list(ours) == list(reference)


def test_reads_csv_as_the_datasets_package_does(data_dir, tmp_path):
    reference = pytest.importorskip("datasets")
    file = tmp_path / "gsm8k.csv"
    rows = reference.load_dataset(
        "json",
        data_files=str(data_dir / "gsm8k_train.jsonl"),
        split="train",
        cache_dir=str(tmp_path),
    )
    rows = rows.map(
        lambda row, i: {"n": i, "half": i / 2, "even": i % 2 == 0, "none": ""}, with_indices=True
    )
    rows.to_csv(str(file))
    wanted = reference.load_dataset(
        "csv", data_files=str(file), split="train", na_filter=False, cache_dir=str(tmp_path)
    )
    assert list(dataset(file)) == list(wanted)


@pytest.mark.parametrize("format", ["jsonl", "json"])
def test_random_rows_come_back_equal_and_python_reads_them_too(tmp_path, format):
    draw = random.Random(7)

    def value(depth):
        kind = draw.randrange(7 if depth else 5)
        if kind == 0:
            return draw.choice([None, True, False])
        if kind == 1:
            return draw.choice([draw.randrange(-(2**63), 2**63), draw.randrange(100)])
        if kind == 2:
            return draw.choice(
                [draw.gauss(0, 1), math.ldexp(draw.random(), draw.randrange(-1000, 1000))]
            )
        if kind in (3, 4):
            return "".join(
                draw.choice('aB ",\\{}[]\n\r\t\x01é你😀') for _ in range(draw.randrange(9))
            )
        if kind == 5:
            return [value(depth - 1) for _ in range(draw.randrange(4))]
        return {f"k{i}": value(depth - 1) for i in range(draw.randrange(4))}

    rows = [{"a": value(3), "b": value(3)} for _ in range(300)]
    file = tmp_path / f"rows.{format}"
    dataset(rows).save_as(file)
    assert list(dataset(file)) == rows
    text = file.read_text()
    assert (
        json.loads(text) if format == "json" else list(map(json.loads, text.splitlines()))
    ) == rows
    (tmp_path / "python.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(dataset(tmp_path / "python.jsonl")) == rows


def test_a_broken_line_is_named_with_its_number(tmp_path):
    file = tmp_path / "broken.jsonl"
    file.write_text('{"a": 1}\n{"a": 2}\n{"a": 3\n')
    with pytest.raises(InvalidError, match=r"broken\.jsonl line 3 column \d+: incomplete JSON"):
        dataset(file)
    with pytest.raises(NotFoundError, match=r"neither a file here nor an id"):
        dataset("nowhere.jsonl")


def test_slices_wrap_and_memory_takes_rows_columns_and_callables():
    assert [row["i"] for row in dataset(numbers(3), data_slice=range(5))] == [0, 1, 2, 0, 1]
    assert list(dataset({"i": [0, 1]})) == numbers(2)
    assert list(dataset(lambda: ({"i": i} for i in range(2)))) == numbers(2)
    rows = dataset(numbers(3))
    assert rows[-1] == {"i": 2} and rows[1:] == {"i": [1, 2]} and rows["i"] == [0, 1, 2]
    with pytest.raises(IndexError, match="row 3 is outside the dataset of 3 rows"):
        rows[3]
    with pytest.raises(KeyError, match="no row has a field 'x'"):
        rows["x"]
    with pytest.raises(InvalidError, match="data_slice is 5, it must be an iterable"):
        dataset(numbers(3), data_slice=5)
    with pytest.raises(InvalidError, match="data_slice holds 'a', it must hold row indices"):
        dataset(numbers(3), data_slice=["a"])
    with pytest.raises(InvalidError, match="row 1 is a int, it must be a dict"):
        dataset([{}, 1])
    with pytest.raises(InvalidError, match="neither a dataset_id nor data"):
        dataset("")


def test_a_datasets_dataset_is_data():
    reference = pytest.importorskip("datasets").Dataset.from_list(numbers(3))
    from twinkle.dataset import Dataset, DatasetMeta

    assert list(Dataset(DatasetMeta(data=reference))) == numbers(3)


def test_ids_come_from_aliases_local_paths_and_then_hubs(tmp_path, monkeypatch):
    (tmp_path / "train.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "test.jsonl").write_text('{"a": 2}\n')
    aliases = f"swift/x={tmp_path / 'train.jsonl'}, ms://o/dir={tmp_path}, gone/x=/nowhere"
    monkeypatch.setenv("TWINKLE_DATASET_ID_ALIASES", aliases)
    assert dataset("ms://swift/x")[0] == dataset("swift/x")[0] == {"a": 1}
    assert list(dataset("ms://o/dir", split="test")) == [{"a": 2}]
    assert len(dataset(tmp_path, split="other")) == 2
    with pytest.raises(
        NotFoundError, match="alias of 'gone/x' is '/nowhere', which does not exist"
    ):
        dataset("gone/x")
    with pytest.raises(InvalidError, match="begins with 'ftp://', it must be hf:// or ms://"):
        dataset("ftp://o/x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match=r"holds no \.jsonl, \.json or \.csv file"):
        dataset(tmp_path / "empty")
    monkeypatch.setenv("TWINKLE_DATASET_ID_ALIASES", "x")
    with pytest.raises(InvalidError, match="has 'x', it must have the form id=path"):
        dataset("swift/x")


@pytest.mark.parametrize("scheme, package", [("hf", "datasets"), ("ms", "modelscope")])
def test_a_hub_without_its_package_names_it_and_the_alternative(monkeypatch, scheme, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    monkeypatch.setitem(__import__("sys").modules, "modelscope.msdatasets", None)
    with pytest.raises(NotAvailableError, match=f"pip install {package}; or name a local"):
        dataset(f"{scheme}://owner/name")
    monkeypatch.setenv("TWINKLE_FORBID_HF", "1")
    with pytest.raises(InvalidError, match="TWINKLE_FORBID_HF is set"):
        dataset("hf://owner/name")


def test_hub_rows_are_loaded_with_subset_and_split(monkeypatch):
    reference = pytest.importorskip("datasets")
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        if args[0] == "bad/name":
            raise ValueError("no such\nthing")
        return reference.Dataset.from_list(numbers(2))

    monkeypatch.setattr(reference, "load_dataset", load_dataset)
    assert len(dataset("hf://o/n", subset_name="main", split="test")) == 2
    assert calls == [(("o/n", "main"), {"split": "test"})]
    with pytest.raises(NotFoundError, match=r"cannot fetch 'hf://bad/name': no such$"):
        dataset("hf://bad/name")


# ---- map and filter


def test_names_classes_and_instances_of_a_preprocessor_agree(data_dir):
    from twinkle.preprocessor import SelfCognitionProcessor, llm

    assert llm.SelfCognitionProcessor is SelfCognitionProcessor
    arguments = {"model_name": "N", "model_author": "A"}
    results = []
    for processor, init in (
        ("SelfCognitionProcessor", arguments),
        (SelfCognitionProcessor, arguments),
        (SelfCognitionProcessor("N", model_author="A"), None),
    ):
        rows = dataset(data_dir / "self_cognition.jsonl")
        rows.map(processor, init_args=init, load_from_cache_file=False, num_proc=2)
        results.append(list(rows))
    assert results[0] == results[1] == results[2]
    for row in results[0]:
        user, assistant = (
            row[key].replace("{{NAME}}", "N").replace("{{AUTHOR}}", "A")
            for key in ("query", "response")
        )
        assert [m["content"] for m in row["messages"]] == [
            "You are a helpful assistant.",
            user,
            assistant,
        ]


def test_gsm8k_keeps_every_ground_truth(data_dir):
    from twinkle.preprocessor.llm import GSM8KProcessor

    rows = dataset(data_dir / "gsm8k_train.jsonl")
    rows.map(GSM8KProcessor())
    for row in rows:
        truth = row["answer"].split("####")[1].strip().replace(",", "")
        assert row["user_data"] == [["ground_truth", truth]]
        assert row["messages"] == [{"role": "user", "content": row["question"]}]


def test_a_builtin_called_from_python_gives_what_map_gives(data_dir):
    from twinkle.preprocessor import AlpacaProcessor

    columns = dataset(data_dir / "alpaca_en_demo.json")[:20]
    mapped = dataset(data_dir / "alpaca_en_demo.json", data_slice=range(20))
    mapped.map(AlpacaProcessor)
    assert AlpacaProcessor()(columns) == {"messages": mapped["messages"]}


def test_python_preprocessors_and_functions_run_over_columns_or_rows():
    from twinkle.preprocessor import Preprocessor

    class Double(Preprocessor):
        def __call__(self, columns):
            rows = self.map_col_to_row(columns)
            return self.map_row_to_col([{"j": row["i"] * 2} for row in rows])

    wanted = [{"i": i, "j": 2 * i} for i in range(25)]
    for work, options in (
        (Double, {}),
        (Double(), {"batch_size": 7}),
        (lambda columns: {"j": [2 * i for i in columns["i"]]}, {"batched": True}),
        (lambda row: {"j": 2 * row["i"]}, {"batched": False}),
    ):
        rows = dataset(numbers(25))
        rows.map(work, **options)
        assert list(rows) == wanted
    rows = dataset(numbers(4))
    rows.map(lambda columns: {"j": columns["i"][:1]}, remove_columns=["i"], batch_size=2)
    assert list(rows) == [{"j": 0}, {"j": 2}]


def test_a_failing_row_is_named_and_nothing_changes(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "q", "answer": "#### 1"}\n\n{"question": "q"}\n')
    rows = dataset(file)
    before = list(rows)
    with pytest.raises(InvalidError, match=r"rows\.jsonl line 3: data: field 'answer' is missing"):
        rows.map("GSM8KProcessor")

    def broken(columns):
        return {"n": [len(answer) for answer in columns["answer"]]}

    with pytest.raises(InvalidError, match=r"rows\.jsonl line 3: broken: TypeError"):
        rows.map(broken)
    with pytest.raises(InvalidError, match=r"rows\.jsonl line 3: <lambda>: KeyError\('answer'\)"):
        rows.filter(lambda row: row["answer"])
    with pytest.raises(InvalidError, match="returned 1 rows for 2"):
        rows.map(lambda columns: {"n": [1]})
    with pytest.raises(InvalidError, match="returned int, it must return a dict of columns"):
        rows.map(lambda columns: 5)
    with pytest.raises(InvalidError, match="map: unknown argument 'btached'"):
        rows.map("GSM8KProcessor", btached=True)
    with pytest.raises(InvalidError, match=r"there are .*GSM8KProcessor.*SelfCognitionProcessor"):
        rows.map("GSMProcessor")
    with pytest.raises(InvalidError, match="has no argument 'sytem'"):
        rows.map("GSM8KProcessor", init_args={"sytem": "s"})
    with pytest.raises(InvalidError, match="is a function, it cannot take init_args"):
        rows.map(broken, init_args={"a": 1})
    with pytest.raises(InvalidError, match="int must be a subclass of Preprocessor"):
        rows.map(int)
    with pytest.raises(InvalidError, match="columns have different lengths"):
        rows.map(lambda columns: {"a": [1], "b": [1, 2]})
    assert list(rows) == before


def test_filters_are_classes_instances_or_functions():
    from twinkle.preprocessor import DataFilter, Filter

    class Below(Filter):
        def __init__(self, limit=2):
            self.limit = limit

        def __call__(self, row):
            return row["i"] < self.limit

    assert Filter is DataFilter
    for keep, init in (
        (Below, None),
        (Below(2), None),
        (Below, {"limit": 2}),
        (lambda r: r["i"] < 2, None),
    ):
        rows = dataset(numbers(5))
        rows.filter(keep, init_args=init)
        assert list(rows) == numbers(2)


def test_base_classes_say_what_to_define():
    from twinkle.preprocessor import Filter, Preprocessor

    with pytest.raises(NotImplementedError, match="Preprocessor must define __call__"):
        Preprocessor()({})
    with pytest.raises(NotImplementedError, match="DataFilter must define __call__"):
        Filter()({})
    import twinkle.preprocessor
    import twinkle.preprocessor.llm

    assert "GSM8KProcessor" in dir(twinkle.preprocessor) and "GSM8KProcessor" in dir(
        twinkle.preprocessor.llm
    )
    with pytest.raises(AttributeError, match="has no attribute 'NopeProcessor'; there are"):
        twinkle.preprocessor.NopeProcessor  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        twinkle.preprocessor.nope  # noqa: B018


# ---- mixing


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
        with pytest.raises(InvalidError, match="tell map which, by dataset_meta="):
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


def test_what_is_not_there_yet_says_so(tmp_path):
    from twinkle.dataset import Dataset, DatasetMeta

    with pytest.raises(NotAvailableError, match="streaming=True is not available"):
        Dataset(DatasetMeta(data=[]), streaming=True)
    rows = dataset(numbers(1))
    with pytest.raises(NotAvailableError, match="cast_column"):
        rows.cast_column("image", decode=False)
    with pytest.raises(NotAvailableError, match="mode='training'"):
        rows.save_as(tmp_path / "a.jsonl", mode="training")
    with pytest.raises(InvalidError, match="cannot write format 'parquet'"):
        rows.save_as(tmp_path / "a.parquet")
    with pytest.raises(InvalidError, match="mode is 'x'"):
        rows.save_as(tmp_path / "a.jsonl", mode="x")
    with pytest.raises(InvalidError, match="dataset_meta is a str, it must be a DatasetMeta"):
        Dataset("file.jsonl")
    assert not list(tmp_path.iterdir())


# ---- encode


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


# ---- loader


class Counting:
    """Rows that count how often each is read."""

    def __init__(self, count):
        self.reads = [0] * count

    def __len__(self):
        return len(self.reads)

    def __getitem__(self, index):
        self.reads[index] += 1
        return {"i": index}


def batches(loader):
    return [[row["i"] for row in batch] for batch in loader]


def test_every_sample_is_read_once_an_epoch():
    from twinkle.dataloader import DataLoader

    rows = Counting(10)
    loader = DataLoader(rows, batch_size=4, shuffle=True, seed=5)
    first = batches(loader)
    assert rows.reads == [1] * 10 and sorted(i for batch in first for i in batch) == list(range(10))
    assert [len(batch) for batch in first] == [4, 4, 2] and len(loader) == 3
    assert batches(loader) != first  # another epoch, another order
    assert batches(DataLoader(Counting(10), batch_size=4, shuffle=True, seed=5)) == first
    assert loader.get_state() == {"consumed_train_samples": 20}


def test_skipped_samples_are_not_read_and_len_honours_them():
    from twinkle.dataloader import DataLoader

    whole = DataLoader(Counting(10), batch_size=4, shuffle=True)
    first, second = batches(whole), batches(whole)
    rows = Counting(10)
    loader = DataLoader(rows, batch_size=4, shuffle=True)
    loader.skip_consumed_samples(4)
    assert len(loader) == 2 and batches(loader) == first[1:] and sum(rows.reads) == 6
    assert batches(loader) == second
    loader.resume_from_checkpoint(14)
    assert batches(loader) == second[1:]


def test_short_batches_meshes_callables_and_collators():
    from twinkle import DeviceMesh
    from twinkle.dataloader import DataLoader

    def batch_lengths(**options):
        return [
            len(batch)
            for batch in DataLoader(lambda: dataset(numbers(10)), batch_size=4, **options)
        ]

    assert batch_lengths() == [4, 4, 2]
    assert batch_lengths(min_batch_size=4, remote_group="model", num_workers=2) == [4, 4]
    assert batch_lengths(drop_last=True) == [4, 4]
    mesh = DeviceMesh.from_sizes(dp_size=2)
    assert batch_lengths(device_mesh=mesh) == [2, 2, 1]
    with pytest.raises(
        InvalidError, match="batch_size is 3, it must be divisible by the 2 data ranks"
    ):
        DataLoader(numbers(3), batch_size=3, device_mesh=mesh)
    with pytest.raises(InvalidError, match="min_batch_size is 0, it must be at least 1"):
        batch_lengths(min_batch_size=0)
    with pytest.raises(InvalidError, match="unknown argument 'sampler'"):
        batch_lengths(sampler=1)
    with pytest.raises(InvalidError, match="dataset is a int, it must be a Dataset"):
        DataLoader(5, batch_size=1)
    assert list(DataLoader(numbers(2), batch_size=2, collate_fn=len)) == [2]
    loader = DataLoader(numbers(4), batch_size=2)
    loader.set_processor("InputProcessor", padding_side="right")
    assert batches(loader) == [[0, 1], [2, 3]]
    one, _ = iter(loader), iter(loader)
    with pytest.raises(InvalidError, match="this epoch ended when another one was started"):
        next(one)
