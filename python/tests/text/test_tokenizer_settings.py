"""A tokenizer's configuration files: their ids and named tokens are those of transformers."""

import json
import shutil
from pathlib import Path

import pytest
import transformers
from text.conversations import core

EXTRA = {"__type": "AddedToken", "content": "<e>", "lstrip": True, "rstrip": False,
         "normalized": False, "special": False}  # fmt: skip

FILES = {
    "a dict of extra tokens": {"tokenizer_config.json": {
        "extra_special_tokens": {"extra_token": "<e>", "other": "<o>"}, "pad_token": "<p>"}},
    "a list of both kinds": {"tokenizer_config.json": {"extra_special_tokens": ["<o>", EXTRA]}},
    "both names of a list": {"tokenizer_config.json": {
        "extra_special_tokens": ["<e>"], "additional_special_tokens": ["<o>"]}},
    "a dict and the older list": {"tokenizer_config.json": {
        "extra_special_tokens": {"a_token": "<e>"}, "additional_special_tokens": ["<o>"]}},
    "names of its own": {"tokenizer_config.json": {"image_token": "<e>", "eos_token": "<o>"}},
    "the map wins": {
        "tokenizer_config.json": {"eos_token": "<e>"},
        "special_tokens_map.json": {"eos_token": "<o>", "additional_special_tokens": ["<p>"]}},
    "the map is not read": {
        "tokenizer_config.json": {"added_tokens_decoder": {}, "eos_token": "<e>"},
        "special_tokens_map.json": {"eos_token": "<o>", "additional_special_tokens": ["<p>"]}},
    "added tokens by id": {
        "special_tokens_map.json": {"additional_special_tokens": ["<e>"]},
        "added_tokens.json": {"<p>": 70000, "<e>": 60000, "<o>": 3}},
    "ends": {"tokenizer_config.json": {
        "bos_token": "<e>", "add_bos_token": True, "add_eos_token": True,
        "add_prefix_space": True}},
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_ids_and_named_tokens_are_those_of_transformers(smollm2_dir, tmp_path, name):
    shutil.copy(Path(smollm2_dir) / "tokenizer.json", tmp_path)
    for file, content in FILES[name].items():
        (tmp_path / file).write_text(json.dumps(content))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = core.Tokenizer(str(tmp_path))
    for text in ("a <e>b", "<o><p> <e>x", "plain"):
        assert ours.encode(text, add_special_tokens=True) == theirs.encode(text), text
    assert ours.special_tokens == theirs.special_tokens_map
    assert ours.vocab_size == len(theirs)
