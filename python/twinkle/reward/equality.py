"""Compares two answers: as texts, as numbers, as formulas, part by part."""

import re

from twinkle.reward.expression import close, number, values
from twinkle.reward.latex import MOST, Group, shape, squeezed, standard, without_unit

_RELATION = re.compile(r"<=|>=|!=|<|>|=|∈")
_FLIPPED = {"<=": ">=", ">=": "<=", "<": ">", ">": "<", "=": "=", "!=": "!="}
# The unknowns: x, f(x), a_1, area, (x, y).
_NAME = re.compile(r"\\?[A-Za-z]+(?:_\w|_\{\w+\})?'?(?:\([\w,]*\))?|\([A-Za-z](?:,[A-Za-z])+\)")
_MANY = 20  # parts of a list that are matched with each other


def equal(reply, truth):
    """True if a reply's answer is the true one: both texts, LaTeX or plain.

    Left out: spaces, $, \\left and the like, units where the other has none or the same, degree and
    percent signs, commas of thousands, "x =" where one has it. (a, b), [a, b) and matrices are
    compared in order; {a, b}, "a, b", "a or b", unions and a \\pm b in any. Numbers and formulas
    are equal as values: fractions and decimals exactly, others to 1e-9 of the larger one. 3\\frac12
    is 3.5. Texts that are neither are compared as they are, words in any case. An answer of more
    than 1000 characters is compared as it is.
    """
    reply, truth = reply.strip(), truth.strip()
    if not reply or not truth:
        return False
    if max(len(reply), len(truth)) > MOST:
        return reply == truth
    reply, truth = standard(reply), standard(truth)
    return bool(squeezed(reply)) and _same(shape(reply), shape(truth))


def real_number(answer):
    """(value, unit) of an answer that is one real number, 'x =' before it left out: a float and a
    text; (None, '') of any other."""
    if len(answer) > MOST:
        return None, ""
    sides, signs = _sides(standard(answer))
    if signs and (set(signs) != {"="} or not _names(sides[0])):
        return None, ""
    text, unit = without_unit(sides[-1])
    value = number(text)
    return value, unit if value is not None else ""


def _same(a, b):
    a, b = _alone(a), _alone(b)
    if isinstance(a, str) and isinstance(b, str):
        return _same_text(a, b)
    if isinstance(a, str) or isinstance(b, str):
        return _group_and_text(a, b)
    if len(a.parts) != len(b.parts):
        return False
    if (a.ordered or b.ordered) and a.brackets != b.brackets:
        return False
    if a.ordered:
        return all(_same(p, q) for p, q in zip(a.parts, b.parts, strict=True))
    if len(a.parts) > _MANY:
        return a == b
    left = list(b.parts)
    for part in a.parts:
        match = next((i for i, other in enumerate(left) if _same(part, other)), None)
        if match is None:
            return False
        del left[match]
    return True


def _alone(a):
    """A list or set of one part is that part."""
    while isinstance(a, Group) and not a.ordered and len(a.parts) == 1:
        a = a.parts[0]
    return a


def _group_and_text(a, b):
    """A text may be 'x = ' and a group."""
    group, text = (a, b) if isinstance(a, Group) else (b, a)
    sides, signs = _sides(text)
    if not signs or not set(signs) <= {"=", "∈"} or not _names(sides[0]):
        return False
    last = shape(sides[-1])
    return isinstance(last, Group) and (_same(group, last) if group is a else _same(last, group))


def _same_text(reply, truth):
    if squeezed(reply) == squeezed(truth):
        return True
    (left, of_left), (right, of_right) = _sides(reply), _sides(truth)
    if of_left and of_right:
        return _same_relation(left, of_left, right, of_right)
    if of_right:
        solved = set(of_right) <= {"=", "∈"} and _names(right[0])
        return solved and _same(shape(reply), shape(right[-1]))
    if of_left:
        return set(of_left) <= {"=", "∈"} and _same(shape(left[-1]), shape(truth))
    return _same_value(reply, truth)


def _same_relation(left, of_left, right, of_right):
    """In chains of equations only the first and the last side count."""
    if set(of_left) == set(of_right) == {"="}:
        left, right, of_left, of_right = left[:: len(left) - 1], right[:: len(right) - 1], "=", "="
    forms = [(left, list(of_left))]
    if "∈" not in of_left:
        forms.append((left[::-1], [_FLIPPED[sign] for sign in reversed(of_left)]))
    return any(
        signs == list(of_right)
        and all(_same(shape(a), shape(b)) for a, b in zip(sides, right, strict=True))
        for sides, signs in forms
    )


def _same_value(reply, truth):
    (a, unit), (b, wanted) = without_unit(reply), without_unit(truth)
    if unit and wanted and unit != wanted:
        return False
    x, y = squeezed(a), squeezed(b)
    if x == y or (len(x) > 1 and x.isalpha() and x.casefold() == y.casefold()):
        return True
    one, other = values(a), values(b)
    return one is not None and other is not None and close(one, other)


def _sides(text):
    """(texts between relations, the relations)."""
    return _RELATION.split(text), _RELATION.findall(text)


def _names(text):
    return _NAME.fullmatch(re.sub(r"\s", "", text)) is not None
