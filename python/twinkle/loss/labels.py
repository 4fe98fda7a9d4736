"""The labels of a batch that a loss counts, and what a script gives for each of them: log-
probabilities of another model, advantages, a teacher's logits. B sequences, padded to L, N labels.
"""

from twinkle import checks
from twinkle.errors import InvalidError, require


def check_ignore_index(ignore_index):
    """InvalidError: any other than -100."""
    require(
        ignore_index == -100 and not isinstance(ignore_index, bool),
        f"loss: ignore_index is {ignore_index!r}, labels are ignored by -100 only",
    )


def scored(inputs, reader):
    """Mask [B, L] bool of the labels that count: other than -100, attended to, of loss_scale 1.
    reader: who reads them, such as 'loss: GRPOLoss'. InvalidError: another loss_scale than 0 and 1,
    by which the reader weighs nothing."""
    mask = inputs["labels"] != -100
    if "attention_mask" in inputs:
        mask = mask & (inputs["attention_mask"] != 0)
    if "loss_scale" in inputs:
        scale = inputs["loss_scale"]
        odd = scale[mask & (scale != 0) & (scale != 1)].tolist()
        if odd:
            raise InvalidError(
                f"{reader} weighs no labels, but loss_scale is {odd[0]} somewhere: it must be 0 or "
                "1, or left out"
            )
        mask = mask & (scale != 0)
    return mask


def at_labels(name, given, inputs, mask, width=None):
    """[N] float64, or with a width, 'floats', 'logits' or 'integers', [N, K] float32 or int64: what
    `given` has for the labels of mask [B, L], in order.

    given: for each sequence one number, one entry for each of its labels that count, or one for
    each position of the sequence, padded or not; without a width an entry is a number, or the list
    of (token id, log p) that a sampled token has in SampledSequence.logprobs, with one K of them.
    InvalidError: another number of sequences or entries, what is no number, nan, inf, log
    probabilities of other tokens than the labels; of 'logits' -inf passes, a token of probability
    0, unless a label has nothing else.
    """
    import torch

    _check_entries(name, given, len(mask), "sequence")
    dtype = {None: torch.float64, "integers": torch.int64}.get(width, torch.float32)
    rows = []
    for i, (row, length) in enumerate(zip(given, _lengths(inputs, mask), strict=True)):
        what = f"loss: {name} of inputs[{i}]"
        if width is None and _is_sampled(row):
            entries = _of_sampled(what, row, inputs["labels"][i][mask[i]].tolist())
        else:
            entries = row
        values = _at(what, _tensor(what, entries, dtype), mask[i].nonzero()[:, 0], length, width)
        if width != "integers":
            _check_finite(what, values, masked=width == "logits")
        rows.append(values)
    return torch.cat(rows)


def of_pairs(name, given, pairs):
    """[pairs] float64 of one number for each pair of sequences. InvalidError: another number of
    entries, one that is no single number, nan, inf."""
    import torch

    _check_entries(name, given, pairs, "pair")
    rows = []
    for i, row in enumerate(given):
        what = f"loss: {name}[{i}]"
        value = _tensor(what, row, torch.float64)
        require(
            value.numel() == 1,
            f"{what} has {value.numel()} entries, it must be one number, the sum over the reply's "
            "labels; log-probabilities of each label go into ref_logps, of both replies",
        )
        _check_finite(what, value, masked=False)
        rows.append(value.reshape(()))
    return torch.stack(rows) if rows else torch.zeros(0, dtype=torch.float64)


def spread(name, given, inputs, mask):
    """[B, L] float64 of what at_labels gives, 0 elsewhere. InvalidError: as at_labels."""
    import torch

    out = torch.zeros(mask.shape, dtype=torch.float64)
    out[mask] = at_labels(name, given, inputs, mask)
    return out


def reference(reader, ref_logps, ref_outputs):
    """(name, values) of a reference's log-probabilities, for at_labels. InvalidError: there are
    none, and `reader`, such as 'loss: DPOLoss', needs them."""
    if ref_logps is not None:
        return "ref_logps", ref_logps
    if ref_outputs is not None:
        require(
            isinstance(ref_outputs, dict) and ref_outputs.get("logps") is not None,
            "loss: ref_outputs must be what forward_only returned, with 'logps'",
        )
        return "ref_outputs['logps']", ref_outputs["logps"]
    raise InvalidError(
        f"{reader} needs a reference: pass ref_outputs=model.forward_only(inputs=..., "
        "disable_lora=True), or ref_logps"
    )


def _check_entries(name, given, count, of_each):
    sized = hasattr(given, "__len__") and getattr(given, "ndim", 1) > 0
    if not sized or isinstance(given, (str, bytes, dict)):
        checks.refuse(f"loss: {name}", given, f"a list or tensor with an entry for each {of_each}")
    require(
        len(given) == count,
        f"loss: {name} has {len(given)} entries for {count} {of_each}s, they must be equally many",
    )


def _check_finite(what, values, masked):
    """masked: -inf is a token that is left out, of which no label has all."""
    import torch

    left_out = values == -torch.inf if masked else torch.zeros_like(values, dtype=torch.bool)
    require(
        bool((torch.isfinite(values) | left_out).all()),
        f"{what} has an entry that is nan or inf, all must be finite"
        + (", or -inf for a probability of 0" if masked else ""),
    )
    require(
        not (masked and values.numel() and left_out.all(-1).any()),
        f"{what} has a label of which every entry is -inf, at least one must be finite",
    )


def _lengths(inputs, mask):
    """Positions of each sequence without its trailing padding; L if nothing marks padding."""
    attended = inputs.get("attention_mask")
    if attended is None:
        return [mask.shape[1]] * len(mask)
    return [int(row.nonzero().max()) + 1 if row.any() else 0 for row in attended]


def _is_sampled(row):
    """True if it has the form of SampledSequence.logprobs: per token [(token id, log p), ...]."""
    entries = row if isinstance(row, (list, tuple)) and row else [None]
    return all(
        isinstance(entry, (list, tuple))
        and entry
        and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in entry)
        for entry in entries
    )


def _of_sampled(what, row, labels):
    """The log-probability of each label among those of its token."""
    require(
        len(row) == len(labels),
        f"{what} has the log-probabilities of {len(row)} sampled tokens for {len(labels)} labels, "
        "they must be equally many: train on the new_input_feature that came with them",
    )
    out = []
    for at, (entry, label) in enumerate(zip(row, labels, strict=True)):
        found = dict(map(tuple, entry))
        require(
            label in found,
            f"{what} has at {at} the log-probability of {_tokens(found)}, but the label is "
            f"{label}: train on the new_input_feature that came with it",
        )
        out.append(found[label])
    return out


def _tokens(found):
    """An entry of several does not identify the sampled one."""
    first, *others = found
    return f"tokens {checks.short([first, *others])}" if others else f"token {first}"


def _tensor(what, row, dtype):
    import torch

    try:
        return torch.as_tensor(row, dtype=dtype).detach()
    except (ValueError, TypeError, RuntimeError):
        checks.refuse(what, row, "a number or a list of numbers")


def _at(what, row, at, length, width):
    """The entries of row at the labels' positions `at`."""
    if width is None and row.numel() == 1:
        return row.reshape(1).expand(len(at))
    require(
        row.ndim == (1 if width is None else 2),
        f"{what} has shape {list(row.shape)}, it must be "
        + ("one number, or a list of them" if width is None else "[entries, K]"),
    )
    if len(row) == len(at):
        return row
    require(
        len(row) >= length,
        f"{what} has {len(row)} entries, it must have one for each of its {len(at)} labels, or for "
        f"each of its {length} positions",
    )
    return row[at]
