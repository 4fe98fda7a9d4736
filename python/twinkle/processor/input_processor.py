"""InputProcessor."""

import torch
from torch.nn.utils.rnn import pad_sequence

from twinkle import checks
from twinkle.errors import names_arguments, require
from twinkle.remote.decorate import remote_class
from twinkle.remote.how import of_one

_PADS = {"labels": -100, "position_ids": -1, "length": -1, "routed_experts": -1}  # others: 0
# Pictures and the like: whole tensors one after the other.
_WHOLE = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "grid_thws",
          "input_features", "input_features_mask", "feature_attention_mask")  # fmt: skip


@remote_class(execute="all", listed=False)
@names_arguments("processor: InputProcessor")
class InputProcessor:
    """Subclass and override __call__ to change features before a forward.

    The engine packs tokens, and never pads them: padding_side and padding_free are for collate_fn,
    which makes the tensors that losses of one's own may want. InvalidError: an unknown argument, a
    padding_side other than 'left' and 'right', a framework other than 'transformers' and
    'megatron', a padding_free that is neither True nor False.
    """

    def __init__(
        self,
        device_mesh=None,
        padding_free=False,
        framework="transformers",
        padding_side="right",
    ):
        checks.one_of("processor: padding_side", padding_side, ("left", "right"))
        checks.one_of("processor: framework", framework, ("transformers", "megatron"))
        self.device_mesh = device_mesh
        self.padding_free = checks.flag("processor: padding_free", padding_free)
        self.framework = framework
        self.padding_side = padding_side

    @of_one
    def __call__(self, inputs):
        """A list of InputFeatures to a list of InputFeatures; here: the same."""
        return inputs

    @of_one
    def collate_fn(self, inputs, micro_batch_size=None, variable_seq_lengths=False):
        """A list with a dict of tensors for each micro_batch_size rows (None: all rows).

        Lists and arrays of numbers become [B, longest, ...], padded on padding_side: labels with
        -100, position_ids and routed_experts with -1, others with 0; longest is that of all rows,
        or, with variable_seq_lengths, of the B. With padding_free it has [1, total], and
        position_ids count each row from 0. Of what is no number it has a list. Only fields of every
        row are there. InvalidError: no row, a row without input_ids, a micro_batch_size below 1.
        """
        rows = [checks.mapping("processor: a row", row) for row in inputs]
        rows = [{name: _tensor(value) for name, value in row.items()} for row in rows]
        require(rows, "processor: inputs has no row: collate_fn takes at least one")
        lacking = [index for index, row in enumerate(rows) if row.get("input_ids") is None]
        require(not lacking, f"processor: inputs[{', '.join(map(str, lacking))}] has no input_ids")
        least = checks.integer("processor: micro_batch_size", micro_batch_size, 1, none=True)
        size = least or len(rows)
        own = checks.flag("processor: variable_seq_lengths", variable_seq_lengths)
        longest = 0 if own else max(len(row["input_ids"]) for row in rows)
        return [self._batch(rows[i : i + size], longest) for i in range(0, len(rows), size)]

    def _batch(self, rows, longest):
        if self.padding_free:
            rows = [{**row, "position_ids": torch.arange(len(row["input_ids"]))} for row in rows]
        names = [name for name in rows[0] if all(name in row for row in rows)]
        return {name: self._column(name, rows, longest) for name in names}

    def _column(self, name, rows, longest):
        values = [row[name] for row in rows]
        if not all(map(torch.is_tensor, values)):
            return values
        if name in _WHOLE:
            return torch.cat(values)
        if values[0].dim() == 0:
            return torch.stack(values)
        if self.padding_free:
            return torch.cat(values)[None]
        per_token = all(len(row[name]) == len(row["input_ids"]) for row in rows)
        whole = values[0].new_empty(longest if per_token else 0, *values[0].shape[1:])
        pad = _PADS.get(name, 0)
        return pad_sequence([*values, whole], True, pad, self.padding_side)[:-1]


def _tensor(value):
    """A tensor of numbers; what is none as it is."""
    if torch.is_tensor(value):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):  # texts, dicts, lists of several lengths
        return value
