"""Names of fields: an InputFeature may have any others, but none that is a slip of its own."""

from functools import lru_cache

from twinkle.data_format.message import Trajectory
from twinkle.data_format.output import InputFeature
from twinkle.errors import InvalidError

_FIELDS = tuple(InputFeature.__annotations__)
_KNOWN = frozenset((*_FIELDS, *Trajectory.__annotations__))
# Other names of a field. Rows may have a column of that name, if not one number per token.
_OTHERS = {"weights": "loss_scale"}
_WHAT = {"loss_scale": ", the weights of the labels"}


def refuse_misspelt(where, feature):
    """InvalidError: a field that is one slip away from one of InputFeature's, which is missing, or
    of which it has the length too: 'label' may be a row's class in addition to 'labels'."""
    for name in feature:
        meant = None if name in _KNOWN else _meant(name)
        if meant is None:
            continue
        field = _OTHERS.get(meant, meant)
        if _per_token(feature[name], feature) or (meant == field and feature.get(field) is None):
            raise InvalidError(
                f"{where}: {name!r} is not a field, did you mean {field!r}{_WHAT.get(field, '')}?"
            )


def _per_token(values, feature):
    """True if there are as many as input_ids."""
    sized = hasattr(values, "__len__") and not isinstance(values, (str, bytes, dict))
    ids = feature["input_ids"]
    return sized and hasattr(ids, "__len__") and _length(values) == _length(ids)


def _length(values):
    shape = getattr(values, "shape", None)
    return len(values) if shape is None else next(iter(shape), None)


@lru_cache(maxsize=4096)  # rows of one data set have the same names
def _meant(name):
    """The field that a name is one slip away from, or None."""
    if not isinstance(name, str):
        return None
    plain = _plain(name)
    for field in (*_FIELDS, *_OTHERS):
        if _one_slip(plain, _plain(field)):
            return field
    return None


def _plain(name):
    return "".join(filter(str.isalnum, name)).lower()


def _one_slip(a, b):
    """True if two words are equal except for a letter that is missing, too many or another, or for
    two that have changed places."""
    begin = 0
    while begin < min(len(a), len(b)) and a[begin] == b[begin]:
        begin += 1
    a, b = a[begin:], b[begin:]
    return (
        a[1:] == b[1:]
        or a[1:] == b
        or a == b[1:]
        or (a[:2] == b[1::-1] and a[2:] == b[2:])
    )  # fmt: skip
