"""Packed rows: nothing lost, nothing too long, and training on them is training on the samples."""

import itertools

import numpy as np
import pytest
from data_rows import conversation, dataset, numbers

from twinkle.dataset import DatasetMeta, IterablePackingDataset, PackingDataset
from twinkle.errors import InvalidError

pytestmark = pytest.mark.usefixtures("engine_built", "data_built")

TALKS = [conversation("Nova " * n) for n in (1, 9, 4, 2, 12, 3, 1, 7)]


def encoded(kind, directory, max_length=96, **options):
    rows = kind(DatasetMeta(data=TALKS), **options)
    rows.set_template("Template", model_id=directory, max_length=max_length)
    rows.encode()
    return rows


def samples_of(packed):
    """The samples in packed rows, cut where positions begin again."""
    for row in packed:
        starts = [i for i, p in enumerate(row["position_ids"]) if p == 0] + [row["length"]]
        for a, b in itertools.pairwise(starts):
            assert row["position_ids"][a:b] == list(range(b - a))
            assert row["labels"][b - 1] == -100
            yield list(row["input_ids"][a:b]), list(row["labels"][a:b])


def test_a_packed_dataset_has_the_samples_behind_each_other(tiny_llama_dir):
    alone = encoded(PackingDataset, tiny_llama_dir)
    packed = encoded(PackingDataset, tiny_llama_dir, packing_num_proc=2)
    packed.pack_dataset()
    assert 1 < len(packed) < len(alone)
    assert all(row["length"] == len(row["input_ids"]) <= 96 for row in packed)
    wanted = sorted((list(row["input_ids"]), list(row["labels"])) for row in alone)
    assert sorted(samples_of(packed)) == wanted


def test_a_stream_is_packed_in_intervals(tiny_llama_dir):
    alone = encoded(PackingDataset, tiny_llama_dir)
    stream = encoded(IterablePackingDataset, tiny_llama_dir, packing_interval=3)
    rows = [{k: np.asarray(v).tolist() for k, v in row.items()} for row in stream]
    wanted = sorted((list(row["input_ids"]), list(row["labels"])) for row in alone)
    assert sorted(samples_of(rows)) == wanted and len(rows) < len(alone)
    asked = IterablePackingDataset(DatasetMeta(data=TALKS), packing_interval=3)
    asked.set_template("Template", model_id=tiny_llama_dir, max_length=96)
    for _ in range(2):
        asked.pack_dataset()  # encodes, once
    assert list(asked) == rows
    again = encoded(IterablePackingDataset, tiny_llama_dir, packing_interval=8, cyclic=True)
    lengths = [row["length"] for row in itertools.islice(again, 3 * len(TALKS))]
    period = len(list(encoded(IterablePackingDataset, tiny_llama_dir, packing_interval=8)))
    assert lengths[:period] == lengths[period : 2 * period]


def test_training_on_packed_rows_is_training_on_their_samples_bit_for_bit(tiny_llama_dir):
    import torch

    from twinkle import LoraConfig
    from twinkle.model import TransformersModel

    packed = encoded(PackingDataset, tiny_llama_dir)
    packed.pack_dataset()
    rows = list(packed)
    apart = [{"input_ids": ids, "labels": labels} for ids, labels in samples_of(rows)]
    results = []
    for batch in (rows, apart):
        model = TransformersModel(model_id=tiny_llama_dir)
        model.add_adapter_to_model("a", LoraConfig(r=4))
        model.set_optimizer("AdamW", lr=0.01)
        outputs = [model.forward_backward(inputs=batch)]
        model.clip_grad_and_step()
        outputs.append(model.forward_only(inputs=batch))
        results.append(outputs)
    for one, other in zip(*results, strict=True):
        assert one["loss"] == other["loss"] and one["num_tokens"] == other["num_tokens"]
        assert one["logps"].shape == (len(apart), max(len(f["input_ids"]) for f in apart))
        assert torch.equal(one["logps"], other["logps"])


def test_padding_does_not_count_as_a_sample(tiny_llama_dir):
    from twinkle.core import core

    left = {"input_ids": [0, 0, 5, 6], "attention_mask": [0, 0, 1, 1], "position_ids": [0, 0, 0, 1]}
    packed = {"input_ids": [5, 6, 7, 8, 9, 0], "labels": [6, -100, 8, 9, -100, -100],
              "loss_scale": [1, 2, 3, 4, 5, 6], "attention_mask": [1, 1, 1, 1, 1, 0],
              "position_ids": [0, 1, 0, 1, 2, 0], "id": 7}  # fmt: skip
    batch = core().Batch([left, packed])
    assert [s["input_ids"].tolist() for s in batch.sequences] == [[5, 6], [5, 6], [7, 8, 9]]
    assert batch.sequences[2]["labels"].tolist() == [8, 9, -100]
    assert batch.sequences[2]["weights"].tolist() == [3, 4, 5]
    assert [f.get("id") for f in batch.features] == [None, 7, 7]
    with pytest.raises(InvalidError, match=r"inputs\[1\].*the label before is not -100"):
        core().Batch([left, {**packed, "labels": [6, 7, 8, 9, -100, -100]}])
    for positions in ([0, 2], [1, 2], [0, 1, 0, 2]):
        with pytest.raises(InvalidError, match="do not count up from 0, as those of a sample"):
            core().Batch([{"input_ids": [5] * len(positions), "position_ids": positions}])


def test_what_cannot_be_packed_is_named(tiny_llama_dir, tmp_path):
    rows = PackingDataset(DatasetMeta(data=numbers(2)))
    with pytest.raises(InvalidError, match="row 0 has no input_ids: packing comes after encode"):
        rows.pack_dataset()
    rows = PackingDataset(DatasetMeta(data=[{"input_ids": [1] * 2049}]))
    with pytest.raises(InvalidError, match="row 0 has 2049 tokens, packed rows have from 1 to 20"):
        rows.pack_dataset()
    assert len(rows) == 1
    with pytest.raises(InvalidError, match="interval 0 row 0 has no input_ids"):
        list(IterablePackingDataset(DatasetMeta(data=numbers(2))))
    with pytest.raises(InvalidError, match="there are no rows to begin again with"):
        list(IterablePackingDataset(DatasetMeta(data=[]), cyclic=True))
    for options, text in (
        ({"packing_interval": 0}, "packing_interval is 0, it must be an integer of at least 1"),
        ({"packing_num_proc": 0}, "packing_num_proc is 0"),
        ({"cyclic": 1}, "cyclic is 1, it must be True or False"),
    ):
        with pytest.raises(InvalidError, match=text):
            IterablePackingDataset(**options)
    assert dataset(numbers(1))[0] == {"i": 0} and not list(tmp_path.iterdir())
