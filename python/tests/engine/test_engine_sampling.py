"""Sampling through tenants: responses, versions, what the cache spares."""

import sys
from pathlib import Path

import numpy as np
import pytest
from engine_batches import BATCH
from features import drawn

from twinkle import InvalidError, NotFoundError
from twinkle.core import core
from twinkle.data_format import SamplingParams
from twinkle.engine import Engine

pytestmark = pytest.mark.usefixtures("engine_built")

PROMPT = {"input_ids": [5, 6, 7]}


def test_a_sample_gives_responses_and_its_logprobs_are_those_of_forward(tiny_llama_dir):
    engine = Engine(tiny_llama_dir, mixed_precision="no", token_budget=64)
    base = engine.tenant("base")
    params = SamplingParams(max_tokens=5, seed=7, logprobs=1, num_samples=2)
    prompts = [{"input_ids": [5, 6, 7]}, {"messages": [{"role": "user", "content": "Hello!"}]}]
    responses = base.sample(prompts, params).result()
    assert [len(r.sequences) for r in responses] == [2, 2]
    assert responses[0].prompt_token_ids == [5, 6, 7]
    assert isinstance(responses[1].sequences[0].decoded, str)
    for sequence in responses[0].sequences:
        ids = np.array([5, 6, 7, *sequence.tokens])
        (row,) = base.logprobs([{"input_ids": ids, "labels": np.append(ids[1:], -100)}]).result()
        assert [pair[0][1] for pair in sequence.logprobs] == list(row[2:-1])
    again = base.sample(prompts[:1], {"max_tokens": 5, "seed": 7, "num_samples": 2}).result()
    assert [s.tokens for s in again[0].sequences] == [s.tokens for s in responses[0].sequences]
    one, two = (base.sample(prompts[:1], {"max_tokens": 12}).result() for _ in range(2))
    assert one[0].sequences[0].tokens != two[0].sequences[0].tokens  # no seed: its own each time


def test_a_sample_that_is_refused_does_not_change_later_ones(tiny_llama_dir):
    texts = []
    for refused in (0, 2):
        base = Engine(tiny_llama_dir, mixed_precision="no").tenant("base")
        for _ in range(refused):
            with pytest.raises(InvalidError, match="max_tokens"):
                base.sample([PROMPT], {"max_tokens": 10**6})
        texts.append(base.sample([PROMPT], {"max_tokens": 12}).result()[0].sequences[0].tokens)
    assert texts[0] == texts[1]


def test_a_published_version_is_sampled_while_training_goes_on(tenant):
    def tokens(version=0):
        params = {"max_tokens": 8, "seed": 3, "logprobs": 1}
        (response,) = tenant.sample([PROMPT], params, version=version).result()
        return response.sequences[0].logprobs

    def train():
        tenant.forward_backward(BATCH).result()
        tenant.step(lr=0.1).result()

    before = tokens()
    assert tenant.publish().result() == 1
    train()
    now = tokens()  # the next token comes from the new weights; no file was written
    assert now != before and tokens(version=1) == before
    assert tenant.publish().result() == 2
    pinned = tenant.sample([PROMPT], {"max_tokens": 8, "seed": 3, "logprobs": 1}, version=1)
    tenant.release(1).result()
    train()
    assert pinned.result()[0].sequences[0].logprobs == before
    assert tokens(version=2) == now
    with pytest.raises(NotFoundError, match="keeps no version 1; it has published 2 and keeps 1"):
        tokens(version=1)
    with pytest.raises(NotFoundError, match="keeps no version 7"):
        tenant.release(7).result()


def test_only_adapters_have_versions(engine):
    base = engine.tenant("base of versions")
    with pytest.raises(InvalidError, match="has no adapter; only adapters have versions"):
        base.publish().result()
    base.delete().result()


def test_the_prefix_cache_spares_tokens_until_it_is_reset(tiny_llama_dir):
    engine = Engine(tiny_llama_dir)
    base = engine.tenant("base")
    prompt = drawn([200])[0]

    def computed():
        before = engine.stats()["num_computed_tokens"]
        (response,) = base.sample([prompt], {"max_tokens": 2, "temperature": 0}).result()
        return engine.stats()["num_computed_tokens"] - before, response.sequences[0].tokens

    first, want = computed()
    second, again = computed()
    assert (first, second) == (201, 201 - 192) and again == want
    assert engine.stats()["num_prefix_tokens"] == 192
    engine.reset_prefix_cache()
    assert computed() == (201, want)


@pytest.mark.parametrize(("options", "shared"), [({}, 192), ({"share_prefixes": False}, 0)])
def test_tenants_of_a_script_share_the_base_models_prefixes(tiny_llama_dir, options, shared):
    engine = Engine(tiny_llama_dir, **options)
    for name in ("one", "other"):
        engine.tenant(name).sample([drawn([200])[0]], {"max_tokens": 2}).result()
    assert engine.stats()["num_prefix_tokens"] == shared


def test_samples_with_stop_strings_hold_on_to_nothing(tiny_llama_dir):
    engine = Engine(tiny_llama_dir)
    base, template = engine.tenant("base"), engine.template()._template
    params = {"max_tokens": 2, "stop": "never"}

    def held():
        base.sample([PROMPT], params).result()
        list(base.sample_stream(PROMPT, params))
        return sys.getrefcount(template)

    assert [held() for _ in range(4)] == [held()] * 4


def test_decoded_is_there_whoever_came_first(tiny_llama_dir, tmp_path):
    ids, params = [{"input_ids": [1, 2, 3]}], {"max_tokens": 3, "seed": 1}
    first = Engine(tiny_llama_dir).tenant("a").sample(ids, params).result()[0].sequences[0]
    engine = Engine(tiny_llama_dir)
    engine.tenant("a").sample([PROMPT], params).result()
    behind = engine.tenant("b").sample(ids, params).result()[0].sequences[0]
    want = engine.template().decode(first.tokens, skip_special_tokens=True)
    assert first.decoded == behind.decoded == want
    assert np.array_equal(
        first.new_input_feature["input_ids"], behind.new_input_feature["input_ids"]
    )
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(Path(tiny_llama_dir, file))
    bare = Engine(tmp_path).tenant("a").sample(ids, params).result()[0].sequences[0]
    assert bare.tokens == first.tokens and bare.decoded is None is bare.new_input_feature


def test_stop_strings_are_found_by_the_tokenizer_that_the_operation_names(tiny_llama_dir):
    engine = core().Engine(tiny_llama_dir)
    engine.create(tenant="base", frozen=True).result()
    request = {"tenant": "base", "prompts": [[1, 2, 3]], "tokenizer": tiny_llama_dir}
    params = {"max_tokens": 20, "seed": 4, "ignore_eos": True}
    ((free,),) = engine.sample(**request, params=[params]).result()
    word = core().Template(tiny_llama_dir).decode(free["tokens"])[4:7]
    ((stopped,),) = engine.sample(**request, params=[{**params, "stop": [word]}]).result()
    assert stopped["matched"] == word and len(stopped["tokens"]) < 20
    request["tokenizer"] = f"{tiny_llama_dir}/nowhere"
    with pytest.raises(NotFoundError, match=r"nowhere/tokenizer\.json"):
        engine.sample(**request, params=[{**params, "stop": [word]}])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tmperature": 1}, "^engine: forward: 'tmperature' is not a field, it has tenant, seq"),
        ({"temperature": "hot"}, "^engine: forward: temperature is 'hot', which is of a wrong t"),
        ({"tenant": 5}, "^engine: forward: tenant is 5, it must be a text$"),
        ({"sequences": 5}, "^engine: forward: sequences is 5, it must be a list$"),
        (
            {"sequences": [{"input_ids": [1], "extras": {"x": ["a"]}}]},
            r"^engine: sequence 0: extras\.x m",
        ),
    ],
)
def test_the_compiled_engine_names_a_field_that_it_cannot_take(tiny_llama_dir, given, text):
    engine = core().Engine(tiny_llama_dir)
    with pytest.raises(InvalidError, match=text):
        engine.forward(**{"tenant": "a", "sequences": [{"input_ids": [1]}], **given})
    assert "weight=1E0, priority=0. A Future." in engine.create.__doc__
