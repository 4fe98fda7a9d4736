"""A tokenizer's configuration files: their ids and named tokens are those of transformers."""

import json
import shutil
from pathlib import Path

import pytest
import transformers
from text.conversations import core

EXTRA = {"__type": "AddedToken", "content": "<e>", "lstrip": True, "rstrip": False,
         "normalized": False, "special": False}  # fmt: skip

FLAGS = {"special": True, "normalized": False, "single_word": False, "lstrip": False,
         "rstrip": False}  # fmt: skip

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
    "other flags of known tokens": {"tokenizer_config.json": {"added_tokens_decoder": {
        "1": {"content": "<|im_start|>", **FLAGS, "lstrip": True, "rstrip": True},
        "2": {"content": "<|im_end|>", **FLAGS, "single_word": True},
        "0": {"content": "<|endoftext|>", **FLAGS, "special": False, "normalized": True}}}},
    "the same flags": {"tokenizer_config.json": {"added_tokens_decoder": {
        "1": {"content": "<|im_start|>", **FLAGS}}}},
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
    known = "a <|im_start|> b<|im_end|>c <|im_end|> d<|endoftext|> e"
    for text in ("a <e>b", "<o><p> <e>x", "plain", known):
        assert ours.encode(text, add_special_tokens=True) == theirs.encode(text), text
    assert ours.special_tokens == theirs.special_tokens_map
    assert ours.vocab_size == len(theirs)
    ids = theirs.encode(known)
    assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(
        ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizer"])
def test_a_key_that_the_class_applies_is_refused_where_tokenizer_json_has_another(
    smollm2_dir, tmp_path, name
):
    shutil.copy(Path(smollm2_dir) / "tokenizer.json", tmp_path)

    def theirs(**config):
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": name, **config})
        )
        return getattr(transformers, name).from_pretrained(tmp_path).encode("a")

    assert theirs(add_prefix_space=False) == core.Tokenizer(str(tmp_path)).encode("a")
    assert theirs(add_prefix_space=True) == core.Tokenizer(str(smollm2_dir)).encode(" a")
    with pytest.raises(ValueError, match="add_prefix_space is false here and true in tokenizer_"):
        core.Tokenizer(str(tmp_path))
