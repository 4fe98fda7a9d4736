"""Small functions of tensors that losses and metrics written in Python need. Scripts know this
module as `twinkle.torch_util`."""

from collections.abc import Mapping


def to_device(data, device, non_blocking=False):
    """`data` with every tensor in it, nested in dicts, lists and tuples, on `device`."""
    if hasattr(data, "to") and hasattr(data, "dtype"):
        return data.to(device, non_blocking=non_blocking)
    if isinstance(data, Mapping):
        return {key: to_device(value, device, non_blocking) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        moved = [to_device(value, device, non_blocking) for value in data]
        return type(data)(*moved) if hasattr(data, "_fields") else type(data)(moved)
    return data


def selective_log_softmax(logits, index):
    """log p(index) of logits [..., V] for index [...]: float32, without a [..., V] of its own."""
    logits = logits.float()
    chosen = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return chosen - logits.logsumexp(-1)
