"""InputProcessor.collate_fn: torch's own pad_sequence is the reference."""

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from twinkle.errors import InvalidError
from twinkle.processor import InputProcessor

LENGTHS = (3, 5, 2, 1)
ROWS = [
    {"input_ids": list(range(1, n + 1)), "labels": np.arange(n), "loss_scale": torch.ones(n),
     "position_ids": list(range(n)), "length": n, "messages": [{"role": "user", "content": "a"}],
     "routed_experts": np.ones((n, 2, 3), np.int32), "classes": [1, 2]}
    for n in LENGTHS
]  # fmt: skip
PADS = {"input_ids": 0, "labels": -100, "loss_scale": 0, "position_ids": -1, "routed_experts": -1}


@pytest.mark.parametrize("side", ["left", "right"])
def test_columns_of_tokens_are_padded_as_torch_pads_them(side):
    (batch,) = InputProcessor(padding_side=side).collate_fn(ROWS)
    for name, pad in PADS.items():
        columns = [torch.as_tensor(row[name]) for row in ROWS]
        wanted = pad_sequence(columns, batch_first=True, padding_value=pad, padding_side=side)
        assert torch.equal(batch[name], wanted) and batch[name].dtype == columns[0].dtype, name
    assert batch["length"].tolist() == list(LENGTHS)
    assert batch["classes"].tolist() == [[1, 2]] * 4, "it has no value for each token"
    assert batch["messages"] == [row["messages"] for row in ROWS]


@pytest.mark.parametrize(("own", "widths"), [(False, [5, 5]), (True, [5, 2])])
def test_micro_batches_share_a_length_or_have_their_own(own, widths):
    batches = InputProcessor().collate_fn(ROWS, micro_batch_size=2, variable_seq_lengths=own)
    assert [list(batch["input_ids"].shape) for batch in batches] == [[2, w] for w in widths]


def test_without_padding_rows_stand_behind_each_other():
    (batch,) = InputProcessor(padding_free=True).collate_fn([*ROWS[:2], {"input_ids": [7]}])
    assert batch["input_ids"].tolist() == [[1, 2, 3, 1, 2, 3, 4, 5, 7]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4, 0]]
    assert "labels" not in batch, "the last row has none"


def test_what_cannot_be_collated_is_named():
    for rows, options, text in (
        ([], {}, "inputs has no row"),
        ([{"input_ids": [1]}, {"labels": [1]}], {}, r"inputs\[1\] has no input_ids"),
        ([5], {}, "a row is 5, it must be a dict"),
        (ROWS, {"micro_batch_size": 0}, "micro_batch_size is 0, it must be an integer of at least"),
        (ROWS, {"variable_seq_lengths": 3}, "variable_seq_lengths is 3, it must be True or False"),
    ):
        with pytest.raises(InvalidError, match=text):
            InputProcessor().collate_fn(rows, **options)
