"""Sampled text of every family has the same bits however it comes about: prompts in any pieces,
samples of one prompt, prefixes from the cache, sequences that give their pages back, adapters that
were parked; and a token's log-probability has the bits of training's score."""

import functools
import tempfile

import pytest
import torch
from parity import ours
from parity.families import recipes as families
from parity.families.test_families import ALL, FIELDS

from twinkle.engine import Engine

START = [3 + i % 150 for i in range(110)]  # more than a page of 64; samples reach the next one
WAYS = [
    {},
    {"prefill_tokens": 1},  # cut at every place
    {"prefill_tokens": 33},
    {"prefill_tokens": 48, "token_budget": 48},
]
ALONE = {"prefix_cache": False}
PRECISIONS = pytest.mark.parametrize("precision", ["no", "bf16"])
TIGHT = {"kv_tokens": 64 * 5, "max_sequences": 3, "prefix_cache": False}


def engine(case, precision, **options):
    return Engine(case.directory, mixed_precision=precision, device=ours.DEVICE, **options)


def train(tenant, case, steps):
    rows = [{k: s[k] for k in ("input_ids", "labels")} for s in case.sequences]
    for _ in range(steps):
        tenant.forward_backward(rows).result()
        tenant.step("AdamW", lr=0.01).result()
    return rows


@functools.cache
def learned(name, precision):
    """The folder of an adapter that has learned."""
    folder = tempfile.TemporaryDirectory(prefix="twinkle-adapter-")
    case = families.case(name)
    tenant = engine(case, precision).tenant("t", FIELDS, seed=1)
    train(tenant, case, 2)
    tenant.save(folder.name + "/adapter").result()
    return folder


def opened(case, precision, **options):
    made = engine(case, precision, **options)
    return made, made.tenant("t", learned(case.name, precision).name + "/adapter")


def texts(tenant, prompts, **sampling):
    """(tokens, log-probabilities) of each sample."""
    params = {"max_tokens": 24, "temperature": 1.0, "seed": 5, "logprobs": 1, **sampling}
    out = tenant.sample([{"input_ids": p} for p in prompts], params).result()
    return [(s.tokens, [of[0][1] for of in s.logprobs]) for r in out for s in r.sequences]


def scores(tenant, prompt, tokens):
    """Training's, of the tokens behind the prompt."""
    row = {"input_ids": [*prompt, *tokens[:-1]]}
    row["labels"] = [-100] * (len(prompt) - 1) + list(tokens)
    return torch.as_tensor(tenant.forward([row]).result()["logps"][0])[len(prompt) - 1 :]


@PRECISIONS
@pytest.mark.parametrize("name", ALL)
def test_cuts_forks_prefixes_and_preemption_change_not_a_bit_of_sampled_text(name, precision):
    case = families.case(name)
    prompts = [[*START, *p] for p in case.prompts] + case.prompts
    made, alone = opened(case, precision, **ALONE)
    want = [s for p in prompts for s in texts(alone, [p], num_samples=2)]
    computed = made.stats()["num_computed_tokens"]
    for prompt, (tokens, logprobs) in zip(prompts, want[::2], strict=True):
        assert torch.equal(scores(alone, prompt, tokens), torch.as_tensor(logprobs))
    for way in WAYS:
        made, roomy = opened(case, precision, **way)
        assert texts(roomy, prompts, num_samples=2) == want, way
        shared = made.stats()["num_prefix_tokens"]
        assert texts(roomy, prompts, num_samples=2) == want, way
        assert made.stats()["num_prefix_tokens"] > shared
    made, tight = opened(case, precision, **TIGHT)
    assert texts(tight, prompts, num_samples=2) == want
    assert made.stats()["num_computed_tokens"] > computed, "none gave its pages back"


@PRECISIONS
@pytest.mark.parametrize("name", ["mistral", "deepseek_v3", "qwen3_next"])
def test_a_prompt_may_be_cut_at_every_place(name, precision):
    """With one more cut at each of its multiples."""
    case = families.case(name)
    prompts = [case.prompts[-1]]
    _, whole = opened(case, precision)
    want = texts(whole, prompts, max_tokens=2)
    for place in range(1, len(prompts[0])):
        _, cut = opened(case, precision, prefill_tokens=place)
        assert texts(cut, prompts, max_tokens=2) == want, place


@PRECISIONS
@pytest.mark.parametrize("name", ALL)
def test_a_tenant_that_was_parked_goes_on_with_the_same_bits(name, precision, tmp_path):
    case = families.case(name)

    def run(**options):
        made = engine(case, precision, **options)
        tenants = [made.tenant(f"t{i}", FIELDS, seed=i) for i in range(2)]
        for _ in range(3):
            for tenant in tenants:
                rows = train(tenant, case, 1)
        given = [tenant.forward(rows).result()["logps"] for tenant in tenants]
        sampled = [texts(tenant, case.prompts) for tenant in tenants]
        return given, sampled, made.stats()["num_returns"]

    given, sampled, returns = run()
    again, text, came_back = run(resident_bytes=1, park_directory=str(tmp_path))
    assert returns == 0 and came_back >= 4
    assert text == sampled
    for mine, theirs in zip(again, given, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
