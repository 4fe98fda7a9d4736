"""The interface of tool-call formats, and finding the format of a text."""


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


class ToolCallRegistry:
    """The known formats, in order: the first that detects its marks takes the whole text. A
    subclass with _parsers of its own is another list."""

    _parsers = []  # noqa: RUF012 (what scripts register is known everywhere)

    @classmethod
    def register(cls, parser):
        """Puts a format last; one whose name is known already replaces that. Returns it."""
        names = [known.name for known in cls._parsers]
        at = names.index(parser.name) if parser.name in names else len(names)
        cls._parsers[at : at + 1] = [parser]
        return parser

    @classmethod
    def parsers(cls):
        """The formats, in the order in which they are asked: a new list."""
        return list(cls._parsers)

    @classmethod
    def detect_first(cls, text):
        """The first format whose marks the text holds; None: no one's."""
        return next((parser for parser in cls._parsers if parser.detect(text)), None)
