"""Tokens as they come, from tenants and from samplers."""

import gc
import threading
import time

import pytest
from engine_batches import BATCH

from twinkle import ConflictError, InvalidError
from twinkle.core import core
from twinkle.engine import Engine
from twinkle.sampler import TorchSampler
from twinkle.template import Template

pytestmark = pytest.mark.usefixtures("engine_built")

TALK = {"messages": [{"role": "user", "content": "Hello!"}]}
LONG = {"max_tokens": 400, "seed": 1, "temperature": 1.5}
MANY = LONG | {"num_samples": 64}  # they take long enough for a call that is to end them


@pytest.fixture(scope="module")
def base(engine):
    return engine.tenant("base")


@pytest.mark.parametrize("seed", range(4))
def test_streamed_tokens_and_text_are_those_of_the_result(base, seed):
    params = {"max_tokens": 40, "seed": seed, "logprobs": 1, "num_samples": 3, "temperature": 1.5}
    stream = base.sample_stream(TALK, params)
    tokens = list(stream)
    response = stream.result()
    (want,) = base.sample([TALK], params).result()
    assert [s.logprobs for s in response.sequences] == [s.logprobs for s in want.sequences]
    for i, sequence in enumerate(response.sequences):
        mine = [token for token in tokens if token.sequence == i]
        assert [token.id for token in mine] == sequence.tokens
        assert [[(token.id, token.logprob)] for token in mine] == sequence.logprobs
        assert "".join(token.text for token in mine) == sequence.decoded
        assert {token.stop_reason for token in mine[:-1]} <= {None}
        assert mine[-1].stop_reason == sequence.stop_reason


def test_a_stop_string_ends_the_stream_and_is_in_it(base):
    free = base.sample([TALK], {"max_tokens": 30, "seed": 2}).result()[0].sequences[0].decoded
    stop = free[8:10]
    params = {"max_tokens": 30, "seed": 2, "stop": stop}
    stream = base.sample_stream(TALK, params)
    tokens = list(stream)
    assert tokens[-1].stop_reason == "stop" and tokens[0].logprob is None
    assert "".join(token.text for token in tokens) == stream.result().sequences[0].decoded
    assert [token.id for token in tokens] == stream.result().sequences[0].tokens


def test_closing_breaking_off_or_dropping_a_stream_ends_the_sampling(engine, base):
    def sampled(leave):
        before = engine.stats()["tenants"].get("base", {}).get("num_sampled_tokens", 0)
        leave(base.sample_stream({"input_ids": [5, 6]}, MANY))
        gc.collect()
        while engine.stats()["num_queued"]:
            time.sleep(0.01)
        after = engine.stats()["tenants"].get("base", {}).get("num_sampled_tokens", 0)
        return after - before

    def close(stream):
        next(stream)
        stream.close()
        assert list(stream) == []
        with pytest.raises(ConflictError, match="engine: cancelled"):
            stream.result()

    def leave_with(stream):
        with stream:
            next(stream)

    def drop(stream):
        for _ in stream:
            break

    for leave in (close, leave_with, drop):
        assert sampled(leave) == 0, leave.__name__
    assert sampled(lambda stream: stream.result()) > 0


def test_who_reads_slowly_or_not_at_all_holds_nobody_up(base):
    unread = base.sample_stream({"input_ids": [5, 6]}, {"max_tokens": 30, "seed": 1})
    other = base.sample([{"input_ids": [7]}], {"max_tokens": 30, "seed": 1}).result(timeout=60)
    assert len(other[0].sequences[0].tokens) > 0
    want = unread.result(timeout=60).sequences[0].tokens
    assert [token.id for token in unread] == want


def test_a_stream_that_fails_raises_when_it_is_read(engine):
    gone = engine.tenant("gone")
    gone.delete().result()
    stream = gone.sample_stream({"input_ids": [5]}, {"max_tokens": 3})
    with pytest.raises(LookupError, match="no tenant 'gone'"):
        next(stream)


def test_streams_of_many_threads_do_not_mix(base):
    def read(seed, out):
        params = {"max_tokens": 25, "seed": seed, "temperature": 1.5}
        out[seed] = [token.id for token in base.sample_stream({"input_ids": [9, 9]}, params)]

    got = {}
    threads = [threading.Thread(target=read, args=(seed, got)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(6):
        params = {"max_tokens": 25, "seed": seed, "temperature": 1.5}
        (response,) = base.sample([{"input_ids": [9, 9]}], params).result()
        assert got[seed] == response.sequences[0].tokens


def test_a_streams_weights_stay_those_it_began_with(tenant):
    params = {"max_tokens": 60, "seed": 4, "temperature": 1.5}
    want = tenant.sample([TALK], params).result()[0].sequences[0].tokens
    stream = tenant.sample_stream(TALK, params)
    tenant.forward_backward(BATCH)
    tenant.step(lr=0.1).result()
    assert [token.id for token in stream] == want


def test_pieces_of_a_text_wait_for_whole_characters(tiny_llama_dir):
    template = Template(tiny_llama_dir)
    text = "aé漢🙂 b"
    ids = template.tokenizer.encode(text)

    def decode(some):
        return template.decode(some, skip_special_tokens=True)

    for whole, cut in ((ids, text), (ids[:-3], decode(ids[:-3]))):
        pieces = core().TextPieces(decode)
        out = [*map(pieces.add, whole[:-1]), pieces.add_last(whole[-1])]
        assert "".join(out) == cut
        assert not any("\ufffd" in piece for piece in out[:-1])


@pytest.mark.parametrize("stop", [None, "e"])
def test_a_samplers_stream_gives_the_text_of_sample_and_the_reason_last(tiny_llama_dir, stop):
    sampler = TorchSampler(tiny_llama_dir)
    params = {"max_tokens": 40, "seed": 5, "stop": stop, "temperature": 1.5}
    deltas = list(sampler.sample_stream(TALK, params))
    (response,) = sampler.sample(TALK, params)
    assert "".join(delta for delta, _ in deltas) == response.sequences[0].decoded
    assert [reason for _, reason in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1][1] == response.sequences[0].stop_reason
    assert len(deltas) > 3


def test_closing_a_samplers_stream_ends_the_sampling(tiny_llama_dir):
    engine = Engine(tiny_llama_dir)
    sampler = TorchSampler(tiny_llama_dir)
    sampler.engine = engine.operations
    with engine.tenant("base").sample_stream({"input_ids": [5, 6]}, MANY) as beside:
        next(beside)  # from here on a step is one of many samples
        stream = sampler.sample_stream({"input_ids": [5]}, LONG)
        next(stream)
        stream.close()
        dropped = sampler.sample_stream({"input_ids": [5]}, LONG)
        del dropped
    while engine.stats()["num_queued"]:
        time.sleep(0.01)
    assert engine.stats()["tenants"].get("frozen", {}).get("num_sampled_tokens", 0) == 0


def test_samplers_of_one_engine_find_stop_strings_with_their_own_templates(tiny_llama_dir):
    engine = Engine(tiny_llama_dir)
    mine, other = TorchSampler(tiny_llama_dir), TorchSampler(tiny_llama_dir)
    mine.engine = other.engine = engine.operations
    other._tenants = mine._tenants
    params = {"max_tokens": 30, "seed": 5, "temperature": 1.5}
    (free,) = mine.sample(TALK, params)
    params["stop"] = free.sequences[0].decoded[5:7]
    (want,) = mine.sample(TALK, params)
    for sampler in (mine, other, mine, other):
        (response,) = sampler.sample(TALK, params)
        assert response.sequences[0].tokens == want.sequences[0].tokens


@pytest.mark.parametrize(
    ("inputs", "params", "text"),
    [
        ([TALK] * 2, None, "sampler: sample_stream takes one input, not 2"),
        ([], None, "sampler: sample_stream takes one input, not 0"),
        (TALK, {"num_samples": 2}, "sampler: num_samples is 2, sample_stream takes 1"),
        (TALK, 5, "sampler: sampling_params is 5, it must be SamplingParams or a dict"),
    ],
)
def test_wrong_streams_are_named(tiny_llama_dir, inputs, params, text):
    sampler = TorchSampler(tiny_llama_dir)
    with pytest.raises(InvalidError, match=text):
        sampler.sample_stream(inputs, params)
