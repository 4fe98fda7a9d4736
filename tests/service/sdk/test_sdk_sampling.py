"""Options of a sample of the real SDK: what ends it, what is drawn, and its log-probabilities."""

import json
import math
from pathlib import Path

import pytest
import torch
from service.clients import TOKENS, datum, loss_of, steps, tinker, trainer, types

PROMPT, LEARNED = TOKENS[:1], TOKENS[1:]  # it ends with the model's own end


@pytest.fixture(scope="module")
def learned(service):
    """A run that has learned to say LEARNED after PROMPT."""
    client = trainer(service)
    for _ in range(80):
        client.forward_backward([datum()], "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=5e-3))
    assert loss_of(client) < 0.1
    return client


@pytest.fixture(scope="module")
def sampler(learned):
    return learned.save_weights_and_get_sampling_client()


@pytest.fixture(scope="module")
def base(service):
    return service.create_sampling_client(base_model="tiny")


def sequences(client, count=1, top=0, **params):
    params = {"max_tokens": 1} | params
    prompt = types.ModelInput.from_ints(PROMPT)
    asked = types.SamplingParams(**params)
    return client.sample(prompt, count, asked, topk_sample_logprobs=top).result().sequences


@pytest.fixture(scope="module")
def whole(learned, tiny_llama_dir):
    """log p of every token after PROMPT, of the run, at a temperature of 1."""
    count = json.loads((Path(tiny_llama_dir) / "config.json").read_text())["vocab_size"]
    inputs = {"target_tokens": torch.arange(count)[None], "weights": torch.ones(1, count)}
    row = types.Datum(
        model_input=types.ModelInput.from_ints(PROMPT),
        loss_fn_inputs={name: types.TensorData.from_torch(t) for name, t in inputs.items()},
    )
    told = learned.forward([row], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    out = told.to_torch()[0].double()
    assert out.exp().sum() == pytest.approx(1, abs=1e-4)
    return out


def test_what_stop_names_ends_a_sample_and_without_it_the_models_end(sampler, tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_llama_dir)
    assert LEARNED[-1] == tokenizer.eos_token_id
    text = tokenizer.decode([282])
    with_text = next(n for n in range(10) if text in tokenizer.decode(LEARNED[:n]))

    def greedy(max_tokens=16, **stop):
        (told,) = sequences(sampler, max_tokens=max_tokens, temperature=0.0, **stop)
        assert len(told.logprobs) == len(told.tokens)
        return told.tokens, told.stop_reason

    assert greedy() == (LEARNED, "stop")
    assert greedy(max_tokens=None) == (LEARNED, "stop")
    assert greedy(max_tokens=4) == (LEARNED[:4], "length")
    for stop, count in (([LEARNED[2]], 3), ([7, LEARNED[4], 9], 5), (text, with_text)):
        assert greedy(stop=stop) == (LEARNED[:count], "stop"), stop
    assert greedy(stop=["no such text", text]) == (LEARNED[:with_text], "stop")
    for stop in ([], "no such text", [305]):  # they replace the model's end
        tokens, reason = greedy(stop=stop)
        assert (tokens[: len(LEARNED)], len(tokens), reason) == (LEARNED, 16, "length"), stop


def test_top_k_and_top_p_draw_from_the_likeliest_whose_logprobs_stay(base):
    (one,) = sequences(base, top=128)
    likeliest = one.topk_logprobs[0]
    assert likeliest == sorted(likeliest, key=lambda pair: -pair[1])
    (five,) = sequences(base, top=5)
    assert five.topk_logprobs[0] == likeliest[:5]
    mass = [0.0]
    for _, logprob in likeliest:
        mass.append(mass[-1] + math.exp(logprob))
    for options, size in (({"top_k": 3}, 3), ({"top_p": mass[5] + 1e-4}, 6)):
        drawn = sequences(base, count=64, top=128, seed=7, **options)
        tokens = {told.tokens[0] for told in drawn}
        assert tokens <= {token for token, _ in likeliest[:size]}
        assert len(tokens) > 1
        for told in drawn:
            assert told.topk_logprobs[0] == likeliest
            assert (told.tokens[0], told.logprobs[0]) in likeliest
    assert len({told.tokens[0] for told in sequences(base, count=64, seed=7)}) > 6
    (greedy,) = sequences(base, max_tokens=6, temperature=0.0)
    for seed in (1, 2):
        (told,) = sequences(base, max_tokens=6, top_k=1, seed=seed)
        assert told.tokens == greedy.tokens


def test_samples_of_one_seed_differ_and_come_again_and_without_it_are_new(base):
    def draw(seed, count=4):
        return [told.tokens for told in sequences(base, count, max_tokens=8, seed=seed, stop=[])]

    first = draw(5)
    assert len({tuple(tokens) for tokens in first}) == 4
    assert draw(5) == first
    assert draw(5, count=2) == first[:2]
    assert draw(6) != first
    assert draw(None) != draw(None)


def test_the_logprobs_of_a_sample_are_the_trainers(learned, sampler):
    for told in sequences(sampler, 4, max_tokens=12, seed=3, stop=[]):
        row = datum([*PROMPT, *told.tokens])
        trained = learned.forward([row], "cross_entropy").result().loss_fn_outputs[0]
        assert told.logprobs == pytest.approx(trained["logprobs"].data, abs=1e-4)
        assert told.stop_reason == "length"


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_logprobs_are_those_of_the_distribution_at_the_temperature(sampler, whole, temperature):
    expected = torch.log_softmax(whole / temperature, 0).tolist()
    for told in sequences(sampler, 8, top=128, temperature=temperature, seed=1):
        assert told.logprobs[0] == pytest.approx(expected[told.tokens[0]], abs=1e-4)
        for token, logprob in told.topk_logprobs[0]:
            assert logprob == pytest.approx(expected[token], abs=1e-4)


def test_a_greedy_samples_logprobs_are_those_at_a_temperature_of_1(sampler, whole):
    (told,) = sequences(sampler, temperature=0.0)
    assert told.tokens == [int(whole.argmax())]
    assert told.logprobs == pytest.approx([float(whole.max())], abs=1e-4)


def test_prompts_are_scored_at_the_samples_temperature(learned, sampler):
    prompt = types.ModelInput.from_ints(TOKENS)
    trained = learned.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]

    def scores(temperature):
        params = types.SamplingParams(max_tokens=1, temperature=temperature)
        return sampler.sample(prompt, 1, params, include_prompt_logprobs=True).result()

    for temperature in (1.0, 0.0):
        told = scores(temperature).prompt_logprobs
        assert told[0] is None and told[1:] == pytest.approx(trained.data, abs=1e-4)
    flatter = scores(4.0).prompt_logprobs[1:]
    assert flatter != pytest.approx(trained.data, abs=1e-2)
    assert sampler.compute_logprobs(prompt).result()[1:] == pytest.approx(trained.data, abs=1e-4)


@pytest.mark.parametrize("most", [4, None])
def test_a_prompt_that_fills_the_context_is_refused(base, tiny_llama_dir, most):
    config = json.loads((Path(tiny_llama_dir) / "config.json").read_text())
    prompt = types.ModelInput.from_ints([5] * config["max_position_embeddings"])
    with pytest.raises(tinker.RequestFailedError, match="must leave room for one more"):
        base.sample(prompt, 1, types.SamplingParams(max_tokens=most)).result()


def test_an_inflight_sampler_is_a_snapshot_too(service):
    client = trainer(service)
    inflight = client.save_weights_and_get_sampling_client(kind="inflight").result()
    before = inflight.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result()
    steps(client, 1)
    client.save_weights_and_get_sampling_client(kind="inflight").result()
    assert inflight.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result() == before
