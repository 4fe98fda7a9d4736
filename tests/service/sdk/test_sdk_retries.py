"""Requests that the real SDK repeats, or sends in another order: it is done once, and in order."""

import json
import time

import pytest
from service.clients import (
    ADAM,
    TOKENS,
    datum,
    loss_of,
    norm_of,
    sample_twelve,
    steps,
    tinker,
    trainer,
    types,
)
from service.relay import Relay
from service.wire import Wire, wait_until

pb = pytest.importorskip("tinker.proto.tinker_public_pb2")

# A poll is soon told to come again, and a tenant may have few requests under way.
TIGHT = ["--hold-seconds", "0.02", "--max-open", "3", "--log-level", "off"]
LONG = datum([(i * i) % 300 + 3 for i in range(400)])


@pytest.fixture(scope="module")
def tight(start, tiny_llama_dir, tmp_path_factory):
    it = start(tiny_llama_dir, tmp_path_factory.mktemp("tight"), *TIGHT)
    yield it
    assert it.stop() == 0


@pytest.fixture
def relay(tight):
    it = Relay(tight.url)
    yield it
    it.close()


@pytest.fixture
def relayed(relay):
    """A client behind the relay."""
    return tinker.ServiceClient(base_url=relay.url, api_key="tml-relayed")


def statuses(relay, route):
    return {each.status for each in relay.of(route)}


def test_chunks_of_a_call_whose_first_comes_last_are_one_call(tight, relay, relayed):
    pairs = [[3 + i % 200, 3 + (7 * i) % 300] for i in range(2100)]
    client, apart = trainer(relayed), trainer(tight.client())

    def first_comes_last(route, body):
        if route == "forward_backward" and pb.ForwardBackwardRequest.FromString(body).seq_id == 1:
            wait_until(lambda: len(relay.of(route)) == 2)

    relay.before = first_comes_last
    passed = client.forward_backward([datum(pair) for pair in pairs], "cross_entropy")
    stepped = client.optim_step(ADAM)
    came = passed.result()
    sent = [pb.ForwardBackwardRequest.FromString(p.body) for p in relay.of("forward_backward")]
    assert sorted((r.seq_id, len(r.data)) for r in sent) == [(1, 1024), (2, 1024), (3, 52)]
    assert sent[-1].seq_id == 1, "or the test would show nothing"
    expected = apart.forward([datum(pair) for pair in pairs[:600]], "cross_entropy").result()
    told = [out["logprobs"].data for out in came.loss_fn_outputs]
    assert told == [expected.loss_fn_outputs[i % 600]["logprobs"].data for i in range(2100)]
    assert came.metrics["loss:sum"] == pytest.approx(-sum(sum(row) for row in told), rel=1e-6)
    for begin in range(0, 2100, 700):
        part = [datum(pair) for pair in pairs[begin : begin + 700]]
        apart.forward_backward(part, "cross_entropy").result()
    assert norm_of(stepped) == pytest.approx(norm_of(apart.optim_step(ADAM)), rel=1e-5)


def test_a_poll_that_is_told_to_come_again_does(tight, relay, relayed):
    loss = trainer(relayed).forward_backward([LONG] * 64, "cross_entropy").result().metrics
    assert statuses(relay, "retrieve_future") == {200, 408}
    alone = loss_of(trainer(tight.client("tml-other")), LONG)
    assert loss["loss:sum"] == pytest.approx(64 * alone, rel=1e-12)


def test_samples_beyond_what_a_tenant_may_have_open_come_again(relay, relayed):
    sample_twelve(relayed)
    assert statuses(relay, "asample") == {200, 429}


def test_training_beyond_what_a_tenant_may_have_open_comes_again(tight, relay, relayed):
    client = trainer(relayed).result()
    wire = Wire(tight.url, "tml-relayed")
    run = wire.run()
    for seq_id in (2, 3, 4):  # they wait for the first
        assert wire.step(run, seq_id).status == 200
    passed = client.forward_backward([datum()], "cross_entropy")
    stepped = client.optim_step(ADAM)
    wait_until(lambda: relay.of("forward_backward"))
    wire.ok(f"sessions/{run.partition(':')[0]}/finish", {})
    assert passed.result().metrics["loss:sum"] > 0
    assert stepped.result().metrics["step"] == 1
    *refused, done = relay.of("forward_backward")
    assert done.status == 200
    assert {each.status for each in refused} == {503}
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)


def test_an_unnamed_save_whose_answer_was_lost_is_the_same_sampler(relay, relayed):
    client = trainer(relayed)
    steps(client, 1)
    relay.losing.append("save_weights_for_sampler")
    sampler = client.save_weights_and_get_sampling_client().result()
    saves = relay.of("save_weights_for_sampler")
    first, second = (json.loads(each.body) for each in saves)
    assert first["seq_id"] == second["seq_id"]
    assert first["sampling_session_seq_id"] != second["sampling_session_seq_id"]
    scores = sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result()
    trained = client.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    assert scores[1:] == pytest.approx(trained.data, abs=1e-4)
    another = client.save_weights_and_get_sampling_client().result()
    ids = [each.get_sampler_handle() for each in (sampler, another)]
    assert ids[0] != ids[1]
    assert len(relay.of("save_weights_for_sampler")) == 3


@pytest.mark.soak
def test_a_poll_is_held_for_half_a_minute(server):
    relay = Relay(server.url)
    client = trainer(tinker.ServiceClient(base_url=relay.url, api_key="tml-patient"))
    begun = time.monotonic()
    client.forward_backward([LONG] * 8, "cross_entropy").result()
    each = time.monotonic() - begun
    work = [client.forward_backward([LONG] * 8, "cross_entropy") for _ in range(int(45 / each))]
    begun = time.monotonic()
    assert work[-1].result(timeout=300).metrics["loss:sum"] > 0
    assert time.monotonic() - begun > 30
    assert statuses(relay, "retrieve_future") == {200, 408}
    relay.close()
