"""Tool calls in replies: each format's texts by hand, and what transformers' rendering of calls
gives back."""

import json
import time

import pytest

from twinkle.template.tools import ToolCallParser, ToolCallRegistry


def calls(text):
    parser = ToolCallRegistry.detect_first(text)
    found = parser.parse(text) if parser else []
    return [(call["function"]["name"], call["function"]["arguments"]) for call in found]


def name_of(text):
    parser = ToolCallRegistry.detect_first(text)
    return parser and parser.name


def clean(text):
    return ToolCallRegistry.detect_first(text).clean(text)


JSON_BLOCK = '<tool_call>\n{"name": "look", "arguments": {"at": "sky", "n": 2}}\n</tool_call>'
XML_BLOCK = (
    "<tool_call>\n<function=look>\n<parameter=at>\nthe sky\n</parameter>\n"
    "<parameter=n>\n[1, 2]\n</parameter>\n</function>\n</tool_call>"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (JSON_BLOCK, [("look", {"at": "sky", "n": 2})]),
        (XML_BLOCK, [("look", {"at": "the sky", "n": [1, 2]})]),
        ("Well.\n" + JSON_BLOCK + "\n" + XML_BLOCK,
         [("look", {"at": "sky", "n": 2}), ("look", {"at": "the sky", "n": [1, 2]})]),
        (JSON_BLOCK.removesuffix("</tool_call>"), [("look", {"at": "sky", "n": 2})]),
        (XML_BLOCK[: XML_BLOCK.index("\n</function>")],
         [("look", {"at": "the sky", "n": [1, 2]})]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", {"a": 1})]),
        ('<tool_call>{"name": "f"}</tool_call>', [("f", {})]),
        ('<tool_call>{"name": "f", "arguments": 3}</tool_call>', [("f", {})]),
        ('<tool_call>{"name": "f", "arg</tool_call>' + JSON_BLOCK,
         [("look", {"at": "sky", "n": 2})]),
        ('<tool_call>{"arguments": {}}</tool_call>', []),
        ("<tool_call>[1]</tool_call>", []),
    ],
)  # fmt: skip
def test_hermes_and_qwen_blocks(text, expected):
    assert name_of(text) == "hermes_qwen"
    assert calls(text) == expected
    assert "tool_call" not in clean(text)


@pytest.mark.parametrize(
    ("text", "expected", "rest"),
    [
        ("I read.\n<read_file><path>src/a.py</path></read_file>",
         [("read_file", {"path": "src/a.py"})], "I read."),
        ("<run>\n <command>ls\n-la</command>\n <ask>false</ask>\n</run> <go><to>b</to></go> done",
         [("run", {"command": "ls\n-la", "ask": "false"}), ("go", {"to": "b"})], "  done"),
    ],
)  # fmt: skip
def test_cline_elements(text, expected, rest):
    assert name_of(text) == "cline"
    assert calls(text) == expected
    assert clean(text) == rest


@pytest.mark.parametrize(
    "text",
    ["plain", "", "2 < 3 > 1", "<b>bold</b>", "<read_file>src/a.py</read_file>",
     "<think>a <b>c</b></think><answer><x>1</x></answer>", "<ul><li>a</li></ul>",
     "<Read><path>a</path></Read>", "Action: none", "Observation: [x]"],
)  # fmt: skip
def test_what_is_no_call_is_in_no_format(text):
    assert ToolCallRegistry.detect_first(text) is None


def test_vcp_requests():
    text = (
        "Ok.\n<<<[TOOL_REQUEST]>>>\ntool_name:「始」 draw 「末」,\nprompt:「始」a\ncat「末」,\n"
        "raw:「始ESCAPE」keep 「始」this「末」「末ESCAPE」\n<<<[END_TOOL_REQUEST]>>>\n"
        "<<<[TOOL_REQUEST]>>>no_name:「始」x「末」<<<[END_TOOL_REQUEST]>>>"
    )
    assert name_of(text) == "vcp"
    assert calls(text) == [("draw", {"prompt": "a\ncat", "raw": "keep 「始」this「末」"})]
    assert clean(text) == "Ok."


def test_react_actions():
    text = (
        "Thought: look it up\nAction: search[who [is] it]\nAction: math.add\n"
        'Action Input: {"a": 1}\nAction: say\nAction Input: hello there\n'
    )
    assert name_of(text) == "react"
    assert calls(text) == [
        ("search", {"input": "who [is] it"}), ("math.add", {"a": 1}),
        ("say", {"input": "hello there"}),
    ]  # fmt: skip
    assert clean(text) == "Thought: look it up"


def test_results_of_tools_are_taken_out_of_their_frame():
    texts = {
        "hermes_qwen": ("<tool_response>\n21 °C\n</tool_response>", "21 °C"),
        "cline": ("[read_file for 'a.py'] Result:\nimport x", "import x"),
        "react": ("Observation: 21", "21"),
        "vcp": ("<<<x>>>", None),
    }
    for parser in ToolCallRegistry.parsers():
        text, result = texts[parser.name]
        assert parser.extract_tool_result(text) == result
        assert parser.extract_tool_result("nothing of it") is None


def test_the_order_decides_and_a_format_of_ones_own_can_be_added():
    both = JSON_BLOCK + "<read_file><path>a</path></read_file>\nAction: a[b]"
    assert name_of(both) == "hermes_qwen"

    class Shout(ToolCallParser):
        name = "shout"

        def detect(self, text):
            return text.startswith("!")

        def parse(self, text):
            return [{"type": "function", "function": {"name": text[1:], "arguments": {}}}]

    class formats(ToolCallRegistry):  # noqa: N801
        _parsers = ToolCallRegistry.parsers()

    own = formats.register(Shout())
    assert formats.detect_first("!go") is own and ToolCallRegistry.detect_first("!go") is None
    newer = Shout()
    assert formats.register(newer) is newer
    assert formats.parsers() == [*ToolCallRegistry.parsers(), newer]
    for method in ("detect", "parse", "clean"):
        with pytest.raises(NotImplementedError, match=f"ToolCallParser must define {method}"):
            getattr(ToolCallParser(), method)("x")


QWEN_TOOLS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content %}{{ m.content }}"
    '{% endif %}{% for call in m.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' }}'
    '{{ call.function.name }}{{ \'", "arguments": \' }}{{ call.function.arguments | tojson }}'
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
)


def test_calls_that_transformers_renders_are_read_back(tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_llama_dir)
    arguments = [{"city": "Köln", "days": 1.5, "exact": None, "of": ["</a>", {"b": "\n\"'"}]}, {}]
    given = [{"type": "function", "function": {"name": f"f{i}", "arguments": value}}
             for i, value in enumerate(arguments)]  # fmt: skip
    text = tokenizer.apply_chat_template(
        [{"role": "assistant", "content": "Let me see.", "tool_calls": given}],
        chat_template=QWEN_TOOLS, tokenize=False,
    )  # fmt: skip
    reply = text.removeprefix("<|im_start|>assistant\n").removesuffix("<|im_end|>\n")
    assert ToolCallRegistry.detect_first(reply).parse(reply) == given
    assert clean(reply) == "Let me see."
    assert json.loads(json.dumps(given)) == given


@pytest.mark.parametrize(
    "piece",
    ["<tool_call>", "<a1>", "<read_file><path>", "<x>" + "</y>", "<function=", "<parameter=a>",
     "<<<[TOOL_REQUEST]>>>", "k:「始」", "k:「始ESCAPE」", "word ", "Action: a[", "Action: f\n",
     "[{"],
)  # fmt: skip
@pytest.mark.parametrize("head", ["", "<tool_call><function=f>", "<<<[TOOL_REQUEST]>>>"])
def test_the_time_is_in_proportion_to_the_text_whatever_a_model_writes(piece, head):
    tail = "<<<[END_TOOL_REQUEST]>>>" if head.startswith("<<<") else ""
    text = head + piece * (100_000 // len(piece)) + tail
    start = time.process_time()
    for parser in ToolCallRegistry.parsers():
        parser.detect(text), parser.parse(text), parser.clean(text)
        parser.extract_tool_result(text)
    assert time.process_time() - start < 5, "a quadratic search takes minutes"


def test_json_that_is_too_deep_for_python_is_no_call():
    assert calls("<tool_call>" + "[" * 100_000) == []
    deep = "Action: f\nAction Input: " + "[" * 100_000
    assert calls(deep) == [("f", {"input": "[" * 100_000})]
