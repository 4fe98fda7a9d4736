"""Numbers and formulas of an answer: parsed by hand, computed at fixed points.

Two formulas are equal when they have equal values at points drawn once and for all: exact
fractions where both are rational, else complex numbers of double precision. Nothing is simplified,
so the time is bounded by the length of the text; whatever would grow beyond _BITS has no value.
"""

import cmath
import functools
import math
import random
import re
import zlib
from fractions import Fraction

from twinkle.reward.latex import NAMES

_TOKEN = re.compile(
    r"\d+(?:\.\d+)?[eE][+-]?\d{1,3}(?!\d)|\d+\.\d+|\.\d+|\d+|\\[A-Za-z]+|[A-Za-z]+|\S"
)
_TOKENS = 300  # a formula has at most
_DEEPEST = 30
_BITS = 4096  # digits of a numerator or denominator
_POINTS = 6  # at the first half of them variables are positive
_LARGEST = 300  # n of n! and of a binomial coefficient
_TOLERANCE = 1e-9  # relative, of numbers that are no fractions
_GREEK = set(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau "
    "upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega".split()
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_FUNCTIONS = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "arcsin": cmath.asin,
    "arccos": cmath.acos, "arctan": cmath.atan, "sinh": cmath.sinh, "cosh": cmath.cosh,
    "tanh": cmath.tanh, "exp": cmath.exp, "ln": cmath.log, "log": cmath.log,
    "cot": lambda x: 1 / cmath.tan(x), "sec": lambda x: 1 / cmath.cos(x),
    "csc": lambda x: 1 / cmath.sin(x),
}  # fmt: skip
_CONSTANTS = {"pi": complex(math.pi), "e": complex(math.e), "i": 1j}


class _NoFormulaError(ValueError):
    """A text that is no formula."""


@functools.lru_cache(maxsize=512)
def values(text):
    """A formula's value at each of the points: a Fraction, a complex, or None where it has none;
    None for a text that is no formula. log is the natural one, e and i are the numbers."""
    tokens = _TOKEN.findall(text)
    if not tokens or len(tokens) > _TOKENS:
        return None
    try:
        formula = _postfix(_Parser(tokens).whole())
    except _NoFormulaError:
        return None
    return tuple(_at(formula, i) for i in range(_POINTS))


def number(text):
    """The value of a formula without variables that is real, as a float; else None."""
    found = values(text)
    if not found or found[0] is None or any(not _close(found[0], other) for other in found):
        return None
    value = complex(found[0]) if _fits(found[0]) else None
    return value.real if value is not None and abs(value.imag) < 1e-12 else None


def close(left, right):
    """True if two lists of values() are those of one formula. Points where one of them has no value
    are left out, as are those with a variable below 0 where one of them is not real."""
    pairs = enumerate(zip(left, right, strict=True))
    both = [
        (a, b)
        for i, (a, b) in pairs
        if a is not None and b is not None and (i < _POINTS // 2 or (_real(a) and _real(b)))
    ]
    return len(both) >= 2 and all(_close(a, b) for a, b in both)


def _real(value):
    return isinstance(value, Fraction) or abs(value.imag) <= 1e-9 * abs(value)


def _fits(value):
    return isinstance(value, complex) or abs(value) < 10**300


def _close(a, b):
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    if not _fits(a) or not _fits(b):
        return False
    a, b = complex(a), complex(b)
    return abs(a - b) <= _TOLERANCE * max(abs(a), abs(b)) + 1e-12


def _postfix(tree):
    """Nodes, operands before what they are operands of."""
    pending, out = [tree], []
    while pending:
        node = pending.pop()
        out.append(node)
        pending += [part for part in node[1:] if isinstance(part, tuple)]
    return out[::-1]


def _at(formula, point):
    try:
        value = _value(formula, point)
    except (ArithmeticError, ValueError):  # 1 / 0, log 0, what overflows
        return None
    return value if isinstance(value, Fraction) or cmath.isfinite(value) else None


@functools.lru_cache(maxsize=512)
def _of_variable(name, point):
    draw = random.Random(zlib.crc32(f"{name} {point}".encode()))
    value = Fraction(draw.randrange(101, 400), draw.randrange(101, 400))
    return value if point < _POINTS // 2 else value * draw.choice((1, -1, -1))


class _Parser:
    """Recursive descent over tokens; nodes are tuples (operation, operands...)."""

    def __init__(self, tokens):
        self.tokens, self.at, self.depth, self.bars = tokens, 0, 0, 0

    def whole(self):
        node = self.sum()
        if self.at < len(self.tokens):
            raise _NoFormulaError
        return node

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted=None):
        token = self.peek()
        if not token or (wanted is not None and token != wanted):
            raise _NoFormulaError
        self.at += 1
        return token

    def sum(self):
        node = self.product()
        while self.peek() in ("+", "-"):
            node = (self.take(), node, self.product())
        return node

    def product(self):
        node = self.signed()
        while True:
            if self.peek() in ("*", "/"):
                node = (self.take(), node, self.signed())
            elif self.starts_factor():
                node = ("*", node, self.power())
            else:
                return node

    def signed(self):
        signs = 0
        while self.peek() in ("+", "-"):
            signs += self.take() == "-"
        node = self.power()
        return ("-", ("n", Fraction(0)), node) if signs % 2 else node

    def starts_factor(self):
        token = self.peek()
        return bool(token) and (
            token[0].isalnum() or token[0] in "\\.([{" or (token == "|" and not self.bars)
        )

    def power(self):
        return self.nested(self.raised)

    def nested(self, rule):
        """All that nests passes through here."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _NoFormulaError
        node = rule()
        self.depth -= 1
        return node

    def raised(self):
        node = self.factor()
        while self.peek() == "!":
            self.take()
            node = ("!", node)
        if self.peek() != "^":
            return node
        self.take()
        return ("^", node, self.signed())

    def factor(self):
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return self.numeral(token)
        if token in _CLOSING:
            node = self.sum()
            self.take(_CLOSING[token])
            return node
        if token == "|":
            self.bars += 1
            node = ("abs", self.sum())
            self.take("|")
            self.bars -= 1
            return node
        return self.named(token)

    def numeral(self, token):
        if not token.isascii() or token == ".":
            raise _NoFormulaError
        node = ("n", Fraction(token))
        start = self.at
        if self.peek() == r"\frac" and "." not in token:  # 3\frac{1}{2} is 3 + 1/2
            part = self.named(self.take())
            if part[1][0] == part[2][0] == "n":
                return ("+", node, part)
            self.at = start
        return node

    def named(self, token):
        name = token.removeprefix("\\")
        if token in (r"\frac", r"\binom"):
            return ("/" if name == "frac" else "binom", self.argument(), self.argument())
        if name == "sqrt":
            return self.root(token)
        if name in _FUNCTIONS:
            return self.function(name)
        if name in _CONSTANTS:
            return ("n", _CONSTANTS[name])
        if token[0] == "\\" and name in _GREEK:
            return self.variable(token)
        if not re.fullmatch("[A-Za-z]|[a-z]{2}", token):
            raise _NoFormulaError
        if len(token) > 1:  # xy: y is the next factor
            self.tokens.insert(self.at, token[1])
            return self.letter(token[0])
        return self.variable(token)

    def letter(self, name):
        return ("n", _CONSTANTS[name]) if name in _CONSTANTS else ("v", name)

    def variable(self, name):
        if self.peek() != "_":
            return self.letter(name)
        self.take()
        token = self.take()
        if token == "{":
            inner = []
            while self.peek() != "}":
                inner.append(self.take())
            self.take("}")
            token = "".join(inner)
        if not token.isalnum():
            raise _NoFormulaError
        return ("v", f"{name}_{token}")

    def argument(self):
        """The argument of a LaTeX command: braces, a digit or a letter."""
        token = self.peek()
        if token.isdigit() and len(token) > 1:
            self.tokens[self.at] = token[1:]
            return ("n", Fraction(token[0]))
        if re.fullmatch("[A-Za-z]{2,}", token):
            raise _NoFormulaError
        return self.nested(self.factor)

    def root(self, token):
        degree = ("n", Fraction(2))
        if token[0] == "\\" and self.peek() == "[":
            self.take()
            degree = self.sum()
            self.take("]")
        return ("root", degree, self.argument() if token[0] == "\\" else self.power())

    def function(self, name):
        exponent = base = None
        while self.peek() in ("^", "_"):
            if self.take() == "^":
                exponent = self.argument()
            else:
                base = self.argument()
        if exponent == ("-", ("n", Fraction(0)), ("n", Fraction(1))) or (base and name != "log"):
            raise _NoFormulaError  # sin^{-1} is arcsin to some, 1 / sin to others
        bracketed = self.peek() in _CLOSING
        node = self.power() if bracketed else self.signed()
        while not bracketed and self.starts_factor() and not self.names_function():
            node = ("*", node, self.power())
        node = ("call", name, node)
        if base:
            node = ("/", node, ("call", "log", base))
        return ("^", node, exponent) if exponent else node

    def names_function(self):
        return self.peek().removeprefix("\\") in NAMES - {"pi", "sqrt"}


def _value(formula, point):
    stack = []
    for operation, *parts in formula:
        if operation == "n":
            stack.append(parts[0])
        elif operation == "v":
            stack.append(_of_variable(parts[0], point))
        elif operation == "call":
            stack.append(_FUNCTIONS[parts[0]](complex(stack.pop())))
        else:
            operands = stack[-len(parts) :]
            stack[-len(parts) :] = [_OPERATIONS[operation](*operands)]
    return stack[0]


def _exact(operation):
    """An operation on Fractions where both are, else on complex numbers."""

    def apply(a, b):
        if not (isinstance(a, Fraction) and isinstance(b, Fraction)):
            return operation(complex(a), complex(b))
        out = operation(a, b)
        if max(out.numerator.bit_length(), out.denominator.bit_length()) > _BITS:
            raise OverflowError
        return out

    return apply


def _power(a, b):
    if not (isinstance(a, Fraction) and isinstance(b, Fraction) and b.denominator == 1):
        return complex(a) ** complex(b)
    bits = max(a.numerator.bit_length(), a.denominator.bit_length())
    if bits > 1 and bits * abs(b) > _BITS:
        raise OverflowError
    if bits <= 1:  # 0, 1 and -1, whose exponent may be anything
        b = b % 2 + 2 if b > 0 else b % 2 - 2 if b < 0 else b
    return a ** int(b)


def _root(degree, a):
    if not isinstance(degree, Fraction) or degree.denominator != 1 or degree < 2:
        raise ValueError
    value = complex(a)
    if degree % 2 and _real(a):  # the real root of a negative number
        return complex(math.copysign(abs(value) ** (1 / int(degree)), value.real))
    return cmath.sqrt(value) if degree == 2 else value ** (1 / int(degree))


def _natural(n):
    if not isinstance(n, Fraction) or n.denominator != 1 or not 0 <= n <= _LARGEST:
        raise ValueError
    return int(n)


_OPERATIONS = {
    "+": _exact(lambda a, b: a + b),
    "-": _exact(lambda a, b: a - b),
    "*": _exact(lambda a, b: a * b),
    "/": _exact(lambda a, b: a / b),
    "^": _power,
    "root": _root,
    "abs": lambda a: abs(a) if isinstance(a, Fraction) else complex(abs(a)),
    "!": lambda a: Fraction(math.factorial(_natural(a))),
    "binom": lambda a, b: Fraction(math.comb(_natural(a), _natural(b))),
}
