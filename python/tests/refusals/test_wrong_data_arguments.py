"""The same of data sets, loaders and preprocessors."""

import pytest
from refusals.values import COUNTS, NONE, SIZES
from refusals.wrong import TALK, World, expect_refusals

from twinkle import hub
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.preprocessor import CLEVRProcessor, OlympiadBenchProcessor, SelfCognitionProcessor

pytestmark = pytest.mark.usefixtures("engine_built", "data_built")

ROWS = [{"a": 1}, {"a": 2}]


@pytest.fixture(scope="module")
def world(tiny_llama_dir, tmp_path_factory):
    return World(tiny_llama_dir, tmp_path_factory.mktemp("saved"))


def _talks(world):
    dataset = Dataset(DatasetMeta(data=[TALK]))
    dataset.set_template(world.template)
    return dataset


CALLS = {
    # dataset
    "DatasetMeta(dataset_id)": (lambda w, v: Dataset(DatasetMeta(v)), set()),
    "DatasetMeta(data)": (lambda w, v: Dataset(DatasetMeta(data=v)), {"list", "dict"}),
    "DatasetMeta(data_slice)": (
        lambda w, v: Dataset(DatasetMeta(data=ROWS, data_slice=v)), NONE | {"list"}),
    "DatasetMeta(split)": (
        lambda w, v: DatasetMeta("rows.jsonl", split=v), {"text"}),
    "DatasetMeta(subset_name)": (
        lambda w, v: DatasetMeta("rows.jsonl", subset_name=v), {"text"}),
    "Dataset(dataset_meta)": (lambda w, v: Dataset(v), NONE),
    "Dataset.add_dataset": (lambda w, v: w.dataset.add_dataset(v), set()),
    "Dataset.map": (lambda w, v: w.dataset.map(v), set()),
    "Dataset.map(init_args)": (
        lambda w, v: w.dataset.map("SelfCognitionProcessor", init_args=v), set()),
    "Dataset.map(batch_size)": (lambda w, v: w.dataset.map(dict, batch_size=v), set()),
    "Dataset.map(remove_columns)": (
        lambda w, v: Dataset(DatasetMeta(data=ROWS)).map(lambda rows: rows, remove_columns=v),
        NONE | {"text", "empty text", "list"}),
    "Dataset.map(returned)": (
        lambda w, v: Dataset(DatasetMeta(data=ROWS)).map(lambda rows: v), {"dict"}),
    "Dataset.map(dataset_meta)": (
        lambda w, v: w.dataset.map(lambda rows: rows, dataset_meta=v), NONE),
    "Dataset.filter": (lambda w, v: w.dataset.filter(v), set()),
    "Dataset.filter(returned)": (
        lambda w, v: Dataset(DatasetMeta(data=ROWS)).filter(lambda row: v), {"True"}),
    "Dataset.filter(dataset_meta)": (
        lambda w, v: w.dataset.filter(lambda row: True, dataset_meta=v), NONE),
    "Dataset.set_template": (lambda w, v: w.dataset.set_template(v), set()),
    "Dataset.encode(add_generation_prompt)": (
        lambda w, v: _talks(w).encode(add_generation_prompt=v), {"True"}),
    "Dataset.mix_dataset": (
        lambda w, v: Dataset(DatasetMeta(data=ROWS)).mix_dataset(interleave=v), {"True"}),
    "Dataset.save_as(path)": (lambda w, v: w.dataset.save_as(v), set()),
    "Dataset.save_as(format)": (
        lambda w, v: w.dataset.save_as(str(w.folder / "a.jsonl"), format=v),
        NONE | {"empty text"}),
    "Dataset.save_as(batch_size)": (
        lambda w, v: w.dataset.save_as(str(w.folder / "a.jsonl"), batch_size=v), SIZES),
    "Dataset.cast_column": (
        lambda w, v: w.dataset.cast_column(v, decode=False), set()),
    "Dataset.cast_column(decode)": (
        lambda w, v: w.dataset.cast_column("a", decode=v), set()),
    "Dataset.save_as(mode)": (
        lambda w, v: w.dataset.save_as(str(w.folder / "a.jsonl"), mode=v), set()),
    # dataloader
    "DataLoader(dataset)": (
        lambda w, v: DataLoader(v, batch_size=1), {"list", "list of None", "list of lists"}),
    "DataLoader(batch_size)": (lambda w, v: DataLoader(ROWS, batch_size=v), {"5"}),
    "DataLoader(min_batch_size)": (
        lambda w, v: DataLoader(ROWS, batch_size=5, min_batch_size=v), {"5"} | NONE),
    "DataLoader(seed)": (lambda w, v: DataLoader(ROWS, batch_size=5, seed=v), {"0", "5"}),
    "DataLoader(shuffle)": (lambda w, v: DataLoader(ROWS, batch_size=5, shuffle=v), {"True"}),
    "DataLoader(drop_last)": (
        lambda w, v: DataLoader(ROWS, batch_size=5, drop_last=v), {"True"}),
    "DataLoader(device_mesh)": (
        lambda w, v: DataLoader(ROWS, batch_size=5, device_mesh=v), NONE),
    "DataLoader(collate_fn)": (
        lambda w, v: DataLoader(ROWS, batch_size=5, collate_fn=v), NONE | {"class"}),
    "DataLoader(max_retries)": (
        lambda w, v: DataLoader(ROWS, batch_size=5, max_retries=v), COUNTS),
    "DataLoader.set_processor": (lambda w, v: w.loader.set_processor(v), set()),
    "DataLoader.skip_consumed_samples": (
        lambda w, v: DataLoader(ROWS, batch_size=1).skip_consumed_samples(v), {"0", "5"}),
    "SelfCognitionProcessor(model_name)": (
        lambda w, v: SelfCognitionProcessor(v, "me")(
            {"query": ["a {{NAME}}"], "response": ["b"], "tag": ["en"]}),
        {"text", "empty text"}),
    "SelfCognitionProcessor(rows)": (
        lambda w, v: SelfCognitionProcessor("a", "b")(v), {"dict"}),
    "hub.get": (lambda w, v: hub.get(v), set()),
    "CLEVRProcessor": (lambda w, v: CLEVRProcessor(v), NONE | {"text", "empty text"}),
    "CLEVRProcessor(problem)": (
        lambda w, v: CLEVRProcessor()({"image": ["a"], "problem": [v]}), {"text"}),
    "CLEVRProcessor(solution)": (
        lambda w, v: CLEVRProcessor()({"image": ["a"], "problem": ["b"], "solution": [v]}),
        NONE | {"text", "empty text"}),
    "OlympiadBenchProcessor(system)": (
        lambda w, v: OlympiadBenchProcessor(v), NONE | {"text", "empty text"}),
    "OlympiadBenchProcessor(language)": (
        lambda w, v: OlympiadBenchProcessor(language=v), set()),
    "OlympiadBenchProcessor(question)": (
        lambda w, v: OlympiadBenchProcessor()({"question": [v]}), {"text"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused_and_change_nothing(world, name, monkeypatch):
    monkeypatch.chdir(world.folder.parent)
    expect_refusals(world, name, *CALLS[name])
