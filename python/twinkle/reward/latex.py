"""One writing for what LaTeX and plain text write in several, and the parts of an answer.

Texts are at most MOST characters, so what takes quadratic time is bounded.
"""

import re
from dataclasses import dataclass

MOST = 1000  # characters of an answer that is taken apart; longer ones are compared as they are
_DEEPEST = 20  # brackets in brackets
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
# Braces of sets become ⦃ and ⦄, text in words stands between \x01 and \x02.
_CHARACTERS = str.maketrans(
    {
        "−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/", "π": r"\pi ", "√": " sqrt ",
        "∞": r"\infty ", "²": "^2", "³": "^3", "≤": "<=", "≥": ">=", "≠": "!=", "，": ",",
        "、": ",", "。": ".", "$": None, "\x01": None, "\x02": None,
    }
)  # fmt: skip
_COMMANDS = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "dbinom": r"\binom",
    "tbinom": r"\binom", "cdot": "*", "times": "*", "ast": "*", "div": "/", "le": "<=",
    "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "ne": "!=",
    "neq": "!=", "lt": "<", "gt": ">", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|",
    "lbrace": "⦃", "rbrace": "⦄", "{": "⦃", "}": "⦄", "langle": "(", "rangle": ")", "cup": "∪",
    "in": "∈", "pm": "±", "mp": "∓", "circ": "°", "degree": "°", "emptyset": "∅",
    "varnothing": "∅", "varphi": r"\phi", "varepsilon": r"\epsilon", "infin": r"\infty",
    "&": "&",
}  # fmt: skip
_NOTHING = set(
    "displaystyle textstyle limits quad qquad boxed big Big bigg Bigg bigl bigr Bigl Bigr biggl "
    "biggr left right , ! ; : ( ) [ ] $ %".split()
) | {" "}
_WORDS = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|mbox|hbox|mathrm|mathbf|mathit|mathsf|operatorname)"
    r"\s*\{([^{}]*)\}"
)
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_MATRIX = re.compile(r"\\(begin|end)\s*\{[a-zA-Z]?matrix\*?\}")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!,?\d)")
_MIXED = re.compile(r"(?<![\d./)}])(\d+) +(\d+) */ *(\d+)(?![\d.])")
# A unit at the end: words in \text and what joins them, or plain words after a number.
_UNIT = re.compile(
    r"(?<=\S)\s*(\x01[^\x01\x02]*\x02(?:[\s/*^{}\d-]|\x01[^\x01\x02]*\x02)*)$"
    r"|(?<=[\d})\]!])\s+([A-Za-z]+(?:\^-?\d)?(?:[ /*]+[A-Za-z]+(?:\^-?\d)?)*)$"
)
_UNIT_LETTERS = set("mgshLNJWVKACF")
NAMES = set(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt pi".split()
)


def standard(text):
    """The text with one writing of signs, spaces, brackets, fractions, percents and degrees."""
    text = text.replace("\\$", "").translate(_CHARACTERS).translate(_FULL_WIDTH)
    if _MATRIX.search(text):
        text = _MATRIX.sub(lambda m: "((" if m[1] == "begin" else "))", text)
        text = text.replace("\\\\", "),(").replace("&", ",")
    text = _WORDS.sub(_marked, text.replace("\\\\", " "))
    text = re.sub(r"\\(left|right)\s*\.", " ", text)
    text = _COMMAND.sub(_command, text).replace("~", " ").replace("**", "^")
    text = re.sub(r"\^\s*\{?\s*°\s*\}?|[°%]", "", text).replace("{,}", ",")
    text = re.sub(r"(?<=\s)(?:and|or)(?=\s)", ",", text)
    text = _MIXED.sub(r"(\1+\2/\3)", text)
    text = re.sub(r"(^|[,(\[⦃=])\s*\+", r"\1", text)
    if not re.search(r"[(\[⦃]", text):
        text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    return text.strip().rstrip(".,;: \\")


def squeezed(text):
    """Without white space and the braces that make no difference, for a comparison of texts."""
    text = re.sub(r"[\s\x01\x02]", "", text)
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", text)


def without_unit(text):
    """(text without the unit at its end, the unit or '')."""
    found = _UNIT.search(text)
    if not found:
        return text, ""
    words = re.findall("[A-Za-z]+", found[2] or "")
    if any(word in NAMES or (len(word) == 1 and word not in _UNIT_LETTERS) for word in words):
        return text, ""
    unit = re.sub(r"[\s.{}\x01\x02]", "", found[1] or found[2])
    return text[: found.start()], unit[:-1] if len(unit) > 3 and unit.endswith("s") else unit


@dataclass(frozen=True)
class Group:
    """An answer in parts. brackets: '()', '[)', ...; '' for a list, a set or a union, '±' for what
    that sign stands for: parts of these have no order. parts: texts and Groups."""

    brackets: str
    parts: tuple

    @property
    def ordered(self):
        """True if (a, b) is not (b, a)."""
        return self.brackets not in ("", "±")


def shape(text, depth=0):
    """A text of standard(), or the Group that it writes."""
    text = text.strip()
    if text.startswith("\x01") and text.endswith("\x02") and "\x01" not in text[1:]:
        text = text[1:-1].strip()
    if depth == _DEEPEST:
        return text
    for separators, merged in ((",;", ("±",)), ("∪", ("±", ""))):
        parts = split(text, separators)
        if len(parts) > 1:
            inner = [shape(part, depth + 1) for part in parts]
            flat = [p.parts if getattr(p, "brackets", None) in merged else (p,) for p in inner]
            return Group("", tuple(part for some in flat for part in some))
    if "±" in text:
        signs = (("+", "-"), ("-", "+"))
        both = (text.replace("±", a).replace("∓", b).removeprefix("+") for a, b in signs)
        return Group("±", tuple(shape(one, depth + 1) for one in both))
    return _bracketed(text, depth)


def split(text, separators):
    """The parts of a text between characters that stand in no bracket."""
    parts, level, start = [], 0, 0
    for i, character in enumerate(text):
        if character in "([{⦃":
            level += 1
        elif character in ")]}⦄":
            level -= 1
        elif level == 0 and character in separators:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _bracketed(text, depth):
    if len(text) < 2 or text[0] not in "([⦃" or text[-1] not in ")]⦄":
        return text
    level = 0
    for character in text[:-1]:
        level += (character in "([{⦃") - (character in ")]}⦄")
        if level == 0:  # the first bracket is closed before the end
            return text
    inner = text[1:-1]
    if text[0] == "⦃":
        if not inner.strip():
            return Group("", ())
        found = shape(inner, depth + 1)
        listed = len(split(inner, ",;∪")) > 1 or getattr(found, "brackets", None) == "±"
        return Group("", found.parts) if listed and found.parts else Group("", (found,))
    parts = split(inner, ",;")
    if len(parts) == 1:
        return shape(inner, depth + 1)
    return Group(text[0] + text[-1], tuple(shape(part, depth + 1) for part in parts))


def _marked(found):
    words = found[1].strip()
    if words in ("and", "or"):
        return ","
    letter = words in ("e", "i") or (len(words) == 1 and re.match(r"\\math(bf|it)", found[0]))
    if letter or found[0].startswith("\\operatorname"):
        return f" {words} "
    return f"\x01{found[1]}\x02"


def _command(found):
    name = found[1]
    if name in _NOTHING:
        return " "
    return _COMMANDS.get(name) or found[0]
