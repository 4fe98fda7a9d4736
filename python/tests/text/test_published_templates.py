"""The chat templates in trl, axolotl and llama.cpp: each renders seven chats as transformers does,
and trains what transformers' assistant mask or the rule of prefix differences says."""

import re
from itertools import groupby

import pytest
from text.conversations import IGNORED, core, shifted
from text.published import CHATS, FOLDER, TOOLS, templates
from transformers import AutoTokenizer

from twinkle.errors import InvalidError

SOURCES = templates()
SAYING = ("user", "assistant", "tool")
CALLS = {"a call and its result", "two calls in one message"}
EVERY = set(CHATS)
LLAMA = "llama_cpp_python/"
# Texts that differ from transformers': the templates, the chats, the reason.
OTHER_TEXTS = [
    (
        {"axolotl/jamba"},
        EVERY,
        "refused: a call with * can be of any size, which the limits of a rendering do not allow",
    ),
    (
        {LLAMA + "llama-cpp-deepseek-r1"},
        CALLS,
        "renders where jinja2 fails: filters make lists here, there generators, which JSON lacks",
    ),
    (
        {LLAMA + "meetkai-functionary-medium-v3.1"},
        CALLS,
        "jinja2 escapes quotes that are added to a text marked as safe, though escaping is off",
    ),
]
# Replies that are refused by name, since they read otherwise in the whole than in its beginning.
REFUSED = [
    (
        {LLAMA + "NVIDIA-Nemotron-Nano-v2", LLAMA + "Reka-Edge"},
        EVERY,
        "the last reply is written in another way than those before",
    ),
    (
        {
            "axolotl/command_a_rag",
            "axolotl/command_a_tool_use",
            LLAMA + "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
            LLAMA + "google-gemma-4-31B-it",
            LLAMA + "openai-gpt-oss-120b",
            "axolotl/gemma4",
            "trl/diffusion_gemma",
            *(f"trl/gemma4{version}" for version in ("", "_v3", "_v4", "_v5")),
        },
        CALLS,
        "the text beside calls is dropped, or stands behind their results",
    ),
    (
        {LLAMA + "CohereForAI-c4ai-command-r-plus-tool_use"},
        CALLS,
        "a message of the system's stands behind the last one, with a prompt or without",
    ),
    ({"axolotl/metharme"}, CALLS, "writes no calls, so a reply of calls has no token"),
]
# Labels that differ from the rule's.
OTHER_LABELS = [
    (
        {"axolotl/command_a"},
        CALLS,
        "always ends with a generation prompt, which the rule takes for the reply's",
    ),
]


# Tags, if any, and a role.
HEADER = re.compile(r"(<[^<>]*>\s*|\W)*(assistant|model|chatbot|bot|ai)(?![a-z])", re.IGNORECASE)


def stands_in(table, name, kind):
    return any(name in names and kind in kinds for names, kinds, _ in table)


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory):
    out = tmp_path_factory.mktemp("published")
    reference.save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def reference(tiny_llama_dir):
    return AutoTokenizer.from_pretrained(tiny_llama_dir)


class Case:
    """A template and a chat, for transformers."""

    def __init__(self, reference, source, chat, tools):
        self.reference, self.source = reference, source
        self.options = {"chat_template": source, "tools": tools, "enable_thinking": True}
        self.chat = self.in_its_form(chat)

    def text(self, messages, **options):
        """None: the template fails."""
        try:
            return self.reference.apply_chat_template(
                messages, tokenize=False, **self.options, **options
            )
        except Exception:  # whatever a template makes of Python's values
            return None

    def in_its_form(self, chat):
        """As Template does: reasoning that the template does not write stands in <think> tags,
        parts that it does not take are joined."""
        probe = {"role": "assistant", "content": "!", "reasoning": "probe", "thinking": "probe"}
        written = self.text([{"role": "user", "content": "?"}, probe])
        reads = "reasoning_content" in self.source or "probe" in (written or "")
        part = [{"type": "text", "text": "probe"}]
        written = self.text([{"role": "user", "content": part}]) or "'type'"
        takes = "probe" in written and not re.search("['\"]type['\"]", written)
        out = []
        for given in chat:
            message = dict(given)
            if isinstance(message["content"], list) and not takes:
                message["content"] = "".join(part["text"] for part in message["content"])
            if reasoning := message.get("reasoning_content"):
                message["reasoning"] = reasoning
                if not reads:
                    message["content"] = f"<think>\n{reasoning}\n</think>\n\n{message['content']}"
            out.append(message)
        return out

    def masked(self):
        encoded = self.reference.apply_chat_template(
            self.chat, return_dict=True, return_assistant_tokens_mask=True, **self.options
        )
        pairs = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
        return [token if mask else IGNORED for token, mask in pairs]

    def by_prefixes(self):
        """The labels, None where a prefix reads otherwise than in the whole, or has no reply."""
        whole = self.text(self.chat)
        encoded = self.reference(whole, add_special_tokens=False, return_offsets_mapping=True)
        labels = [IGNORED] * len(encoded["input_ids"])
        for i, message in enumerate(self.chat):
            if message["role"] != "assistant":
                continue
            place = self.place(i, whole)
            tokens = place and [
                t
                for t, (at, end) in enumerate(encoded["offset_mapping"])
                # A token may join the prompt's last space and the reply's first word.
                if at in range(*place)
                or (
                    at < place[0] < end and whole[at:end].strip() and whole[at : place[0]].isspace()
                )
            ]
            if not tokens:
                return None
            for t in tokens:
                labels[t] = encoded["input_ids"][t]
        return labels

    def place(self, i, whole):
        said, upto = self.text(self.chat[:i]), self.text(self.chat[: i + 1])
        before = self.text(self.chat[:i], add_generation_prompt=True)
        if None in (before, upto) or not whole.startswith(upto):
            return None
        pairs = zip(before, upto, strict=False)
        same = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(upto)))
        if same < len(before):  # the reply lacks the end of the prompt
            if said is None or not upto.startswith(said) or not before.startswith(said):
                return None
            prompt = before[len(said) : same]
            same = len(said) + max(prompt.rfind(end) for end in "\n >") + 1
        return same, len(upto)


def ours(work):
    """The result, or the error's text."""
    try:
        return work(), None
    except InvalidError as error:
        return None, str(error)


def check_labels(case, template, labels, expected):
    if expected is not None:
        assert labels == shifted(expected)
        return
    # The rule says nothing: all that the assistant said, and nothing of the others or of a header.
    runs = [list(run) for trained, run in groupby(labels, lambda x: x != IGNORED) if trained]
    for run in runs:
        assert not HEADER.match(template.decode(run))
    written = "".join(map(template.decode, runs))
    for message in case.chat:
        content = message["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        if text and "tool_calls" not in message and message["role"] in SAYING:
            assert (text.split("</think>")[-1].strip() in written) == (
                message["role"] == "assistant"
            )


@pytest.mark.parametrize("name", SOURCES or ["none"])
def test_a_published_template_renders_and_trains_as_by_transformers(folder, reference, name):
    if not SOURCES:
        pytest.skip(f"no published chat templates in {FOLDER}: scripts/setup.sh test fetches them")
    source = SOURCES[name]
    (folder / "chat_template.jinja").write_text(source, encoding="utf-8", newline="")
    template, refusal = ours(lambda: core.Template(str(folder)))
    if refusal:
        assert stands_in(OTHER_TEXTS, name, "one turn"), refusal
        return
    for kind, chat in CHATS.items():
        if stands_in(OTHER_TEXTS, name, kind):
            continue
        tools = TOOLS if kind in CALLS else None
        case = Case(reference, source, chat, tools)
        row = {"messages": chat, **({"tools": tools} if tools else {})}
        prompt = {**row, "messages": chat[:-1]}
        asked = case.text(case.chat[:-1], add_generation_prompt=True)
        assert ours(lambda row=prompt: template.render(row, True))[0] == asked, kind
        text = case.text(case.chat)
        assert ours(lambda row=row: template.render(row))[0] == text, kind
        if text is None or stands_in(OTHER_LABELS, name, kind):
            continue
        has_tags = re.search(r"\{%-?\s*generation\s*-?%\}", source)
        expected = case.masked() if has_tags else case.by_prefixes()
        feature, refusal = ours(lambda row=row: template.encode(row))
        if refusal:
            assert stands_in(REFUSED, name, kind) and expected is None, (kind, refusal)
            assert "cannot be found" in refusal or "has no trained token" in refusal
        else:
            check_labels(case, template, feature["labels"].tolist(), expected)
