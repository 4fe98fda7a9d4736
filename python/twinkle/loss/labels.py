"""The labels of a batch that a loss counts, and what a script gives for each of them: log-
probabilities of another model, advantages, a teacher's logits. B sequences, padded to L, N labels.
"""

from twinkle.core import core
from twinkle.errors import InvalidError, require


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

    labels, attended = (inputs.get(name) for name in ("labels", "attention_mask"))
    attended = None if attended is None else attended.numpy()
    rows = core().label_rows(
        name, _plain(given), labels.numpy(), mask.numpy(), attended, width or ""
    )
    return torch.from_numpy(rows)


def of_pairs(name, given, pairs):
    """[pairs] float64 of one number for each pair of sequences. InvalidError: another number of
    entries, one that is no single number, nan, inf."""
    import torch

    return torch.from_numpy(core().pair_numbers(name, _plain(given), pairs))


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


def _plain(given):
    """Tensors as NumPy's arrays, also those of a list."""
    if isinstance(given, (list, tuple)):
        return [_array(row) if hasattr(row, "detach") else row for row in given]
    return _array(given) if hasattr(given, "detach") and given.ndim else given


def _array(tensor):
    is_narrow = tensor.is_floating_point() and tensor.dtype.itemsize < 4
    return (tensor.float() if is_narrow else tensor).detach().cpu().numpy()
