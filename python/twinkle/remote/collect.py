"""Collect: one result made of the workers' results."""

from twinkle import checks
from twinkle.data_format.output import pad_of


def ranks_of(how, mesh):
    """The workers whose results are asked for, of those that execute."""
    if how.execute == "first" or how.collect == "first":
        return [0]
    if how.collect in ("last_pp", "last_pp_first"):
        last = mesh.get_pp_last_ranks()
        return last if how.collect == "last_pp" else last[:1]
    if how.dispatch == "slice_dp":
        return mesh.get_collect_ranks()
    return list(range(mesh.world_size))


def join(collect, values):
    """One result of the workers', by remote_function's word or callable. InvalidError: 'flatten' of
    what is no list, 'mean' or 'sum' of what cannot be added."""
    if callable(collect):
        return collect(values)
    if collect in ("first", "last_pp_first"):
        return values[0]
    if collect == "flatten":
        wrong = [value for value in values if not isinstance(value, (list, tuple))]
        if wrong and len(values) > 1:
            must = "a list on every worker"
            checks.refuse("infra: what collect='flatten' joins", wrong[0], must)
        return wrong[0] if wrong else [item for value in values for item in value]
    if collect in ("mean", "avg", "sum"):
        return _summed(collect, values)
    return values


def _summed(collect, values):
    total = values[0]
    try:
        if isinstance(total, (str, bytes, list, tuple)):  # Python would join these
            raise TypeError
        for value in values[1:]:
            total = total + value  # in the order of ranks
        return total if collect == "sum" else total / len(values)
    except TypeError:
        checks.refuse(f"infra: what collect={collect!r} adds", values[0], "a number or an array")


def join_rows(values):
    """A callable for collect: outputs of a model, dicts of each data rank's rows. Lists are put one
    after the other; tensors too, widened to the widest with what the model itself pads them with;
    numbers, which are of the whole batch on every rank, are the first's."""
    first = values[0]
    if first is None or len(values) == 1:
        return first
    return type(first)((name, _rows_of(name, [v[name] for v in values])) for name in first)


join_rows.of_rows = True  # its parts are the pieces that the whole would be cut into


def _rows_of(name, values):
    first = values[0]
    if isinstance(first, (list, tuple)):
        return [item for value in values for item in value]
    if not getattr(first, "ndim", 0):
        return first
    import torch

    values = [torch.as_tensor(value) for value in values]
    if values[0].ndim > 1:
        width, pad = max(value.shape[1] for value in values), torch.nn.functional.pad
        after = [0, 0] * (values[0].ndim - 2)  # the dimensions behind, which come first
        ends = [(*after, 0, width - value.shape[1]) for value in values]
        values = [pad(v, end, value=pad_of(name)) for v, end in zip(values, ends, strict=True)]
    return torch.cat(values)
