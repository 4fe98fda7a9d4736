"""From users' inputs to the engine's sequences, and from its vectors to padded tensors."""

import numbers
from itertools import pairwise

import numpy as np

from twinkle import checks
from twinkle.core import core
from twinkle.data_format.names import refuse_misspelt
from twinkle.errors import InvalidError, require
from twinkle.logger import get_logger

# NumPy's kinds of numbers; fractions of ids are the engine's to refuse.
_KINDS = {"input_ids": "iuf", "labels": "iuf", "attention_mask": "iub", "position_ids": "iu"}
_INT64_MAX = 2**63 - 1
_PAD = {"input_ids": 0, "labels": -100, "attention_mask": 0, "loss_scale": 0.0}


def as_list(inputs):
    """A list of dicts from one dict, a list of dicts, or sample responses. InvalidError: None or
    another thing, an item with neither input_ids nor messages, a sample response without
    new_input_feature, a misspelt field, as refuse_misspelt finds them."""
    require(inputs is not None, "model: inputs is missing, pass inputs=batch")
    if isinstance(inputs, dict) or hasattr(inputs, "sequences"):
        inputs = [inputs]
    if not hasattr(inputs, "__iter__") or isinstance(inputs, (str, bytes, type)):
        checks.refuse("model: inputs", inputs, "a dict, a list of dicts, or sample responses")
    out = []
    for item in inputs:
        if hasattr(item, "sequences"):  # a SampleResponse
            for sequence in item.sequences:
                require(
                    sequence.new_input_feature is not None,
                    "model: a sample response has no new_input_feature, set the sampler's template",
                )
                out.append(sequence.new_input_feature)
        elif hasattr(item, "new_input_feature"):
            out.append(item.new_input_feature)
        else:
            out.append(item)
    for index, item in enumerate(out):
        known = isinstance(item, dict) and ("input_ids" in item or "messages" in item)
        if not (known or (isinstance(item, dict) and core().is_read_as_chat(item))):
            row = item[0] if isinstance(item, list) and item else item  # a list of messages
            has = core().in_place_of_messages(row) if isinstance(row, dict) else ""
            raise InvalidError(
                f"model: inputs[{index}] must be an InputFeature with input_ids or a Trajectory "
                f"with messages{has}"
            )
        if "input_ids" in item:  # of other rows the template makes the fields
            refuse_misspelt(f"model: inputs[{index}]", item)
    return out


def _vector(feature, name, index):
    given = feature.get(name)
    if given is None:
        return None
    what = f"model: {name} of inputs[{index}]"
    values = checks.array(what, given, "one sequence [L] of numbers")
    if name != "loss_scale":
        _check_size(what, given, values)
    if values.size and values.dtype.kind not in ("iuf" if name == "loss_scale" else _KINDS[name]):
        checks.refuse(what, values.tolist(), "one sequence [L] of integers")
    if values.ndim != 1:
        raise InvalidError(f"{what} has shape {list(values.shape)}, it must be one sequence [L]")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _check_size(what, given, values):
    """InvalidError: an integer that int64 does not hold. Of a list with one, NumPy makes fractions
    or objects; of uint64, in any byte order, int64 would make another number."""
    kind, suspects = values.dtype.kind, ()
    if kind == "u" and values.dtype.itemsize == 8:
        suspects = [(i, values[i]) for i in np.flatnonzero(values > _INT64_MAX)]
    elif kind == "O" or (kind == "f" and isinstance(given, (list, tuple))):
        suspects = enumerate(given if kind == "f" else values.reshape(-1))
    for i, value in suspects:
        if isinstance(value, numbers.Integral) and not -_INT64_MAX <= value <= _INT64_MAX:
            must = f"at most {_INT64_MAX}" if value > 0 else f"at least {-_INT64_MAX}"
            shown = checks.short(int(value))
            raise InvalidError(f"{what} is {shown} at position {i}, it must be {must}")


def _routes(feature, num_tokens, index):
    """[L, layers, k] int64, or None. A sampler does not compute the last token, of which nothing
    follows: it may be left out, and goes where the routers say."""
    given = feature.get("routed_experts")
    if given is None:
        return None
    what = f"model: routed_experts of inputs[{index}]"
    values = checks.array(what, given, "an array [L, layers, k] of integers")
    _check_size(what, given, values)
    if values.dtype.kind not in "iu" or values.ndim != 3:
        shape = f"{values.dtype} {list(values.shape)}"
        raise InvalidError(f"{what} is {shape}, it must be [L, layers, k] integers")
    values = values.astype(np.int64)
    if (values[num_tokens:] == -1).all():  # as a model's forward pads them
        values = values[:num_tokens]
    if len(values) == num_tokens - 1:
        values = np.concatenate([values, np.full((1, *values.shape[1:]), -1)])
    require(
        len(values) == num_tokens,
        f"{what} has {len(values)} entries, input_ids has {num_tokens}, they must be equally many, "
        "or one fewer, without the last token's",
    )
    return values


def _mask(feature, index):
    values = _vector(feature, "attention_mask", index)
    wrong = () if values is None else np.flatnonzero((values != 0) & (values != 1))
    for i in wrong:
        raise InvalidError(
            f"model: attention_mask of inputs[{index}] is {values[i]} at position {i}, it must be "
            "0 or 1"
        )
    return values


def unpacked(feature, index):
    """The samples of a feature, each a feature: of a packed one, whose position_ids begin again at
    0 for each sample, several. InvalidError: position_ids that begin again behind a label other
    than -100, an attention_mask of others than 0 and 1, a field that is not one sequence of
    numbers."""
    positions = _vector(feature, "position_ids", index)
    ids, mask = _vector(feature, "input_ids", index), _mask(feature, index)
    if positions is None or ids is None or len(positions) != len(ids):
        return [feature]
    kept = np.arange(len(ids))
    if mask is not None and len(mask) == len(ids):  # padding may have any position
        kept = np.flatnonzero(mask)
    starts = [int(i) for i in kept[1:] if positions[i] == 0]
    if not starts:
        return [feature]
    labels = _vector(feature, "labels", index)
    require(
        labels is None or len(labels) != len(ids) or all(labels[i - 1] == -100 for i in starts),
        f"model: position_ids of inputs[{index}] do not count up from 0, and where they begin "
        "again the label before is not -100, as that of a packed sample's last token is",
    )
    cuts = list(pairwise([0, *starts, len(ids)]))
    by_token = (*_KINDS, "loss_scale", "routed_experts")
    names = [name for name in by_token if feature.get(name) is not None]
    return [{**feature, **{name: feature[name][a:b] for name in names}} for a, b in cuts]


def with_marks(features):
    """Features whose labels, if there are any, are as long as input_ids: for task='embedding' one
    label may belong to the whole sequence; it becomes that of the first position."""
    out = []
    for feature in features:
        labels, ids = feature.get("labels"), feature.get("input_ids")
        marked = _size(labels) == 1 and _size(ids) > 1
        rest = [-100] * (len(ids) - 1) if marked else []
        out.append({**feature, "labels": [*labels, *rest]} if marked else feature)
    return out


def _roles(messages):
    """The roles of a row's messages, as text; '' without messages."""
    messages = messages if isinstance(messages, (list, tuple)) else ()
    roles = [message.get("role") for message in messages if isinstance(message, dict)]
    return ", ".join(map(repr, dict.fromkeys(role for role in roles if isinstance(role, str))))


def _size(values):
    """The entries of a sequence, 0 of what is none."""
    sized = hasattr(values, "__len__") and getattr(values, "ndim", 1) == 1
    return len(values) if sized else 0


class Batch:
    """Features as the engine takes them. B sequences; `longest` counts positions as given. Packed
    features are as many sequences as they have samples. InvalidError: no input_ids, a field that is
    not one sequence of numbers or not as long as they are, position_ids of a sample that do not
    count up from 0, and as unpacked."""

    def __init__(self, features):
        self.features = [part for i, f in enumerate(features) for part in unpacked(f, i)]
        self.sequences = []
        self._kept = []  # per sequence: positions whose attention_mask is not 0; None: all
        self.lengths = []
        self._routed = []  # (index, [layers, k]) of those with routed_experts
        for index, feature in enumerate(self.features):
            self._add(feature, index)

    def __len__(self):
        return len(self.sequences)

    @property
    def num_tokens(self):
        """Tokens of all sequences, without those that attention_mask drops."""
        return sum(len(s["input_ids"]) for s in self.sequences)

    @property
    def num_labels(self):
        """Labels that are not -100; 0 without labels."""
        return int(sum((s["labels"] != -100).sum() for s in self.sequences if "labels" in s))

    def _add(self, feature, index):
        ids = _vector(feature, "input_ids", index)
        require(ids is not None and len(ids) > 0, f"model: input_ids of inputs[{index}] is empty")
        sequence = {"input_ids": ids}
        for name, key in (("labels", "labels"), ("loss_scale", "weights")):
            values = _vector(feature, name, index)
            if values is not None:
                sequence[key] = values
                require(
                    len(values) == len(ids),
                    f"model: {name} of inputs[{index}] has {len(values)} entries, input_ids has "
                    f"{len(ids)}, they must be equally many",
                )
        routes = _routes(feature, len(ids), index)
        if routes is not None:
            sequence["routed_experts"] = routes
            self._routed.append((index, list(routes.shape[1:])))
        kept = None
        mask = _vector(feature, "attention_mask", index)
        positions = _vector(feature, "position_ids", index)
        for name, values in (("attention_mask", mask), ("position_ids", positions)):
            require(
                values is None or len(values) == len(ids),
                f"model: {name} of inputs[{index}] has {0 if values is None else len(values)} "
                f"entries, input_ids has {len(ids)}, they must be equally many",
            )
        if mask is not None and not mask.all():
            kept = np.flatnonzero(mask)
            sequence = {key: values[kept] for key, values in sequence.items()}
        if routes is not None:
            sequence["routed_experts"] = sequence["routed_experts"].reshape(-1)
        self._check_positions(positions, kept, index)
        self.sequences.append(sequence)
        self._kept.append(kept)
        self.lengths.append(len(ids))

    @staticmethod
    def _check_positions(positions, kept, index):
        if positions is None:
            return
        positions = positions if kept is None else positions[kept]
        require(
            np.array_equal(positions, np.arange(len(positions))),
            f"model: position_ids of inputs[{index}] do not count up from 0, as those of a sample, "
            "or of each of several packed ones, do",
        )

    def check_routes(self, model_info):
        """InvalidError: routed_experts of other layers, or of another number of experts a token,
        than this model's. model_info: a function that gives it; asked if there are any."""
        if not self._routed:
            return
        info = model_info()
        ours = [info["num_routed_layers"], info["num_experts_per_tok"]]
        for index, given in self._routed:
            require(
                given == ours or not ours[0],  # without experts the engine refuses it by that
                f"model: routed_experts of inputs[{index}] is [L, {given[0]}, {given[1]}], it must "
                f"be [L, {ours[0]}, {ours[1]}], layers with experts and experts a token",
            )

    def warn_of_unlabelled(self):
        """Warns, once in this process, of an input with labels of -100 alone, which teaches
        nothing: its role names are most often wrong."""
        once = "model: unlabelled"
        if get_logger().has_logged(once):
            return
        for index, sequence in enumerate(self.sequences):
            labels = sequence.get("labels")
            if labels is None or (labels != -100).any():
                continue
            roles = _roles(self.features[index].get("messages"))
            has = f": the roles of its messages are {roles}, only 'assistant' is trained"
            get_logger().warning_once(
                f"model: inputs[{index}] has no label to learn from{has if roles else ''}; further "
                "ones are not reported",
                hash_id=once,
            )
            return

    def add_extra(self, name, values, per_sequence=False):
        """A loss's inputs: for each sequence a vector as long as its input_ids, or one number for
        all of its tokens; per_sequence: one number for itself. InvalidError: another number of
        values than sequences, or of another length or kind."""
        require(
            len(values) == len(self),
            f"model: {name} has {len(values)} entries for {len(self)} inputs, they must be equally "
            "many",
        )
        for index, given in enumerate(values):
            value = np.asarray(given)
            require(
                value.dtype.kind in "fiub" and value.ndim <= (0 if per_sequence else 1),
                f"model: {name} of inputs[{index}] must be a number"
                + ("" if per_sequence else " or a list of numbers"),
            )
            extras = self.sequences[index].setdefault("extras", {})
            if per_sequence:
                extras[name] = value.reshape(1)
                continue
            if value.ndim == 0:
                value = np.full(self.lengths[index], value, dtype=np.float32)
            require(
                len(value) == self.lengths[index],
                f"model: {name} of inputs[{index}] has {len(value)} entries, input_ids has "
                f"{self.lengths[index]}, they must be equally many",
            )
            kept = self._kept[index]
            extras[name] = value if kept is None else value[kept]

    def rows(self, vectors):
        """The engine's vectors as float32 arrays as long as the input_ids that were given."""
        out = []
        for vector, kept, length in zip(vectors, self._kept, self.lengths, strict=True):
            if kept is None:
                out.append(vector)
                continue
            wide = np.zeros(length, dtype=np.float32)
            wide[kept] = vector
            out.append(wide)
        return out

    def unscored(self):
        """The sequences without labels."""
        names = ("input_ids", "routed_experts")
        return [{name: s[name] for name in names if name in s} for s in self.sequences]

    def padded(self, vectors):
        """[B, longest] float32 tensor of the engine's vectors, 0 elsewhere; of its matrices
        [tokens, V] one of [B, longest, V]."""
        import torch

        longest = max(self.lengths, default=0)
        out = torch.zeros(len(self), longest, *(vectors[0].shape[1:] if len(vectors) else ()))
        for row, vector in enumerate(vectors):
            values = torch.from_numpy(np.asarray(vector, dtype=np.float32))
            kept = self._kept[row]
            out[row, slice(0, len(values)) if kept is None else torch.from_numpy(kept)] = values
        return out

    def wide(self, vectors, pad):
        """[B, longest] int64 array of the engine's vectors of integers, `pad` elsewhere; of its
        arrays [tokens, ...] one of [B, longest, ...]."""
        longest, rest = max(self.lengths, default=0), vectors[0].shape[1:] if len(vectors) else ()
        out = np.full((len(self), longest, *rest), pad, dtype=np.int64)
        for row, (vector, kept) in enumerate(zip(vectors, self._kept, strict=True)):
            out[row, slice(0, len(vector)) if kept is None else kept] = vector
        return out

    def unpadded(self, tensor):
        """Per sequence the entries of a [B, longest] tensor that the engine has, as float32."""
        rows = tensor.detach().cpu().numpy().astype(np.float32, copy=False)
        return [
            row[:length] if kept is None else row[kept]
            for row, length, kept in zip(rows, self.lengths, self._kept, strict=True)
        ]

    def tensors(self):
        """For losses and metrics: padded tensors [B, longest], and the features as given."""
        import torch

        longest = max(self.lengths, default=0)
        out = {}
        for name, pad in _PAD.items():
            if name == "loss_scale" and not any(name in f for f in self.features):
                continue
            kind = "float32" if isinstance(pad, float) else "int64"
            tensor = torch.full((len(self), longest), pad, dtype=getattr(torch, kind))
            for row, (feature, length) in enumerate(zip(self.features, self.lengths, strict=True)):
                fallback = np.ones(length) if name in ("attention_mask", "loss_scale") else None
                values = feature.get(name)
                values = fallback if values is None else np.asarray(values)
                if values is not None:
                    tensor[row, :length] = torch.from_numpy(values.astype(kind))
            out[name] = tensor
        return out

    def split(self, size):
        """Batches of at most `size` sequences, in order."""
        if size is None or size >= len(self):
            return [self]
        return [Batch(self.features[i : i + size]) for i in range(0, len(self), size)]
