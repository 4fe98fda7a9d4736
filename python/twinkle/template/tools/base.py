"""The interface of tool-call formats, and finding the format of a text."""

import json


class ToolCallParser:
    """One way in which models write tool calls into their text. Subclass it, then register it."""

    name = ""
    open_marker = close_marker = None  # the texts around a call, where they are always the same

    def detect(self, text):
        """True when the text holds this format's marks."""
        raise NotImplementedError(f"{type(self).__name__} must define detect")

    def parse(self, text):
        """list[ToolCall], whose arguments are dicts, in their order. What is broken is left out."""
        raise NotImplementedError(f"{type(self).__name__} must define parse")

    def clean(self, text):
        """The text without its calls, and without white space at its end."""
        raise NotImplementedError(f"{type(self).__name__} must define clean")

    def extract_tool_result(self, text):
        """The result in a message that holds one in this format, else None."""
        del text


class SpanParser(ToolCallParser):
    """A format whose calls lie in parts of the text: a subclass defines spans."""

    def spans(self, text):
        """(begin, end, ToolCall) of each part that is written in this format, in order; None in
        place of a call where the part is broken."""
        raise NotImplementedError(f"{type(self).__name__} must define spans")

    def detect(self, text):
        return any(True for _ in self.spans(text))

    def parse(self, text):
        return [call for _, _, call in self.spans(text) if call is not None]

    def clean(self, text):
        out, at = [], 0
        for begin, end, _ in self.spans(text):
            out.append(text[at:begin])
            at = end
        return "".join([*out, text[at:]]).rstrip()


class ToolCallRegistry:
    """The known formats, in order: the first that detects its marks takes the whole text. A
    subclass with _parsers of its own is another list."""

    _parsers = []  # noqa: RUF012 (what scripts register is known everywhere)

    @classmethod
    def register(cls, parser):
        """Puts a format last; one whose name is known already replaces that. Returns it."""
        names = [known.name for known in cls._parsers]
        if parser.name in names:
            cls._parsers[names.index(parser.name)] = parser
        else:
            cls._parsers.append(parser)
        return parser

    @classmethod
    def parsers(cls):
        """The formats, in the order in which they are asked: a new list."""
        return list(cls._parsers)

    @classmethod
    def detect_first(cls, text):
        """The first format whose marks the text holds; None: no one's."""
        return next((parser for parser in cls._parsers if parser.detect(text)), None)


def tool_call(name, arguments):
    """A ToolCall of a function's name and its arguments, a dict."""
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def json_or(text, default):
    """The value of a JSON text, or `default` where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or nested deeper than Python reads it
        return default


def blocks(text, opening, closing, close):
    """(match, inner text, end) of the text between a match of `opening` and the next
    `close(match)`, none inside another. Linear in the text, whatever a model writes: an end that
    is missing is not looked for again at every beginning, as a regular expression would.

    closing: matches every text that `close` can give.
    """
    last = {found[0]: found.start() for found in closing.finditer(text)}
    at = 0
    while found := opening.search(text, at):
        at, end = found.end(), close(found)
        if last.get(end, -1) >= at:
            to = text.index(end, at)
            at = to + len(end)
            yield found, text[found.end() : to], at
