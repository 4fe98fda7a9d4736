"""A prompt's log-probabilities of the real SDK against transformers: the likeliest tokens, tokens
that are named, tokens that are drawn, and the last tokens alone."""

import pytest
from service.clients import TOKENS, tinker, types

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SIZE = len(TOKENS)
ONE = types.SamplingParams(max_tokens=1, seed=3)


@pytest.fixture(scope="module")
def sampler(start, tiny_llama_dir, tmp_path_factory):
    it = start(tiny_llama_dir, tmp_path_factory.mktemp("state"), "--mixed-precision", "no")
    yield it.client().create_sampling_client(base_model="tiny")
    assert it.stop() == 0


@pytest.fixture(scope="module")
def scores(tiny_llama_dir):
    """log p of every token at each place of the prompt but the first, [SIZE - 1, V]."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0, :-1].log_softmax(-1)


def sample(client, params=ONE, **asked):
    return client.sample(types.ModelInput.from_ints(TOKENS), 1, params, **asked).result()


def near(values, wanted):
    torch.testing.assert_close(torch.as_tensor(values), wanted, rtol=0, atol=1e-4)


def test_the_likeliest_tokens_of_each_place(sampler, scores):
    told = sample(sampler, include_prompt_logprobs=True, topk_prompt_logprobs=5)
    assert told.topk_prompt_logprobs[0] is None and told.prompt_logprobs[0] is None
    rows = told.topk_prompt_logprobs[1:]
    near([[value for _, value in row] for row in rows], scores.topk(5).values)
    for place, row in enumerate(rows):
        near([value for _, value in row], scores[place, [token for token, _ in row]])
    near(told.prompt_logprobs[1:], scores[range(SIZE - 1), TOKENS[1:]])
    alone = sample(sampler, topk_prompt_logprobs=128)
    assert alone.prompt_logprobs is None
    assert [row[:5] for row in alone.topk_prompt_logprobs[1:]] == rows


@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_tokens_that_a_request_names(sampler, scores, is_sparse):
    ids = torch.full((SIZE - 1, 4), -1)
    ids[2:, 0] = torch.tensor(TOKENS[3:])
    ids[4, 3], ids[8, 1] = 0, scores.shape[1] - 1
    make = types.TensorData.from_torch_sparse if is_sparse else types.TensorData.from_torch
    asked = make(ids, pad_value=-1) if is_sparse else make(ids)
    assert (asked.sparse_crow_indices is not None) == is_sparse
    told = sample(sampler, include_prompt_logprobs=True, target_prompt_logprobs=asked)
    targets = told.target_prompt_logprobs
    assert (targets.dtype, targets.shape) == ("float32", [SIZE - 1, 4])
    assert targets.sparse_crow_indices == asked.sparse_crow_indices
    assert targets.sparse_col_indices == asked.sparse_col_indices
    got = targets.to_torch()
    assert (got[ids == -1] == 0).all()
    near(got[ids != -1], scores.gather(1, ids.clamp(min=0))[ids != -1])
    assert got[2:, 0].tolist() == told.prompt_logprobs[3:], "the same bits"


def test_the_last_tokens_alone(sampler):
    whole = sample(sampler, include_prompt_logprobs=True, topk_prompt_logprobs=2)
    told = sample(
        sampler, include_prompt_logprobs=True, topk_prompt_logprobs=2, prompt_logprobs_last_n=3
    )
    assert told.prompt_logprobs == [None] * (SIZE - 3) + whole.prompt_logprobs[-3:]
    assert told.topk_prompt_logprobs == [None] * (SIZE - 3) + whole.topk_prompt_logprobs[-3:]
    prompt = types.ModelInput.from_ints(TOKENS)
    assert sampler.compute_logprobs(prompt, SIZE - 1).result() == whole.prompt_logprobs


def test_tokens_that_are_drawn_for_each_place(sampler, scores):
    def drawn(k, **params):
        params = types.SamplingParams(max_tokens=1, **params)
        told = sample(sampler, params, prompt_alt_tokens_k=k).prompt_alt_tokens
        assert (told.tokens.dtype, told.tokens.shape) == ("int64", [SIZE - 1, k])
        assert (told.logprobs.dtype, told.logprobs.shape) == ("float32", [SIZE - 1, k])
        return told.tokens.to_torch(), told.logprobs.to_torch()

    tokens, logprobs = drawn(64, seed=1, temperature=0.5)
    cold = (scores / 0.5).log_softmax(-1)
    near(logprobs, cold.gather(1, tokens))
    assert torch.equal(drawn(5, seed=1, temperature=0.5, top_k=1)[0], tokens[:, :5])
    assert not torch.equal(drawn(64, seed=2, temperature=0.5)[0], tokens)
    greedy, logprobs = drawn(2, temperature=0.0)
    assert greedy.tolist() == [[token, token] for token in scores.argmax(-1).tolist()]
    near(logprobs[:, 0], scores.max(-1).values)


def test_they_change_no_sample(sampler):
    params = types.SamplingParams(max_tokens=12, seed=7, stop=[])
    plain = sample(sampler, params).sequences[0]
    told = sample(
        sampler, params, include_prompt_logprobs=True, topk_prompt_logprobs=3,
        prompt_alt_tokens_k=3,
    ).sequences[0]  # fmt: skip
    assert (told.tokens, told.logprobs) == (plain.tokens, plain.logprobs)


def test_what_is_out_of_range_is_refused_by_its_name(sampler):
    def named(rows, token):
        return types.TensorData(data=[token] * rows, dtype="int64", shape=[rows, 1])

    last_n = {"include_prompt_logprobs": True, "prompt_logprobs_last_n": SIZE}
    refused = [
        ({"topk_prompt_logprobs": 129}, "topk_prompt_logprobs is 129, it must be from 0 to 128"),
        ({"topk_prompt_logprobs": -1}, "topk_prompt_logprobs is -1, it must be from 0 to 128"),
        ({"prompt_alt_tokens_k": 129}, "prompt_alt_tokens_k is 129, it must be from 0 to 128"),
        (last_n, f"prompt_logprobs_last_n is {SIZE}, it must be from 1 to {SIZE - 1}"),
        ({"target_prompt_logprobs": named(SIZE, 5)}, "target_prompt_logprobs.shape must be"),
        ({"target_prompt_logprobs": named(SIZE - 1, -1)}, "target_prompt_logprobs names no token"),
        ({"target_prompt_logprobs": named(SIZE - 1, 10**6)}, "target_prompt_logprobs.data has 10"),
    ]
    for asked, text in refused:
        with pytest.raises((tinker.UnprocessableEntityError, tinker.RequestFailedError)) as told:
            sample(sampler, **asked)
        assert text in str(told.value)
    assert sample(sampler).sequences, "the sampler goes on"
