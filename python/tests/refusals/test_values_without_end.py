"""Arguments that Python itself cannot write, hash or hold in a float are refused by name."""

import os

import pytest

from twinkle import checks
from twinkle.data_format import LoraConfig, SamplingParams
from twinkle.engine.arguments import as_json
from twinkle.errors import InvalidError
from twinkle.model.group import as_json as group_as_json


def deep(wrap):
    value = "x"
    for _ in range(100_000):
        value = wrap(value)
    return value


@pytest.mark.parametrize("value", [10**400, 10**5000, -(10**400), 2**64], ids="abcd")
@pytest.mark.parametrize("name", ["temperature", "top_k", "seed", "max_tokens"])
def test_numbers_beyond_64_bits(name, value):
    with pytest.raises(InvalidError, match=f"^sampler: {name} is .*64 bits"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"a": x}, lambda x: (x,)])
def test_options_that_are_deep(wrap):
    value = deep(wrap)
    with pytest.raises(InvalidError, match=r"^engine: extras: foo is "):
        as_json("extras", {"foo": value})
    with pytest.raises(InvalidError, match=r"^model: optimizer: foo is "):
        group_as_json("model: optimizer", {"foo": value})
    with pytest.raises(InvalidError, match=r"^sampler: stop is "):
        SamplingParams(stop=[value])
    with pytest.raises(InvalidError, match=r"^lora: target_modules is "):
        LoraConfig(target_modules=[value])


def test_options_that_contain_themselves():
    value = []
    value.append(value)
    with pytest.raises(InvalidError, match=r"^engine: extras: foo is "):
        as_json("extras", {"foo": value})
    with pytest.raises(InvalidError, match=r"^lora: target_modules is "):
        LoraConfig(target_modules=value)


def test_a_path_that_is_no_text():
    with pytest.raises(InvalidError, match=r"^hub: path is 'a.udcff', it must be UTF-8"):
        checks.path("hub: path", os.fsdecode(b"a\xff"))
