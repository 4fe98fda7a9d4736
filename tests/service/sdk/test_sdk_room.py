"""The real SDK where there is no room: for a training request's body, or in the engine's queue."""

import time

import pytest
from service.clients import datum, sample_twelve, tinker, trainer, types
from service.relay import Relay
from service.wire import Wire, wait_until

PATIENCE = 20  # seconds: the default of body_patience_seconds
HEAD = (
    b"POST /api/v1/forward_backward HTTP/1.1\r\nhost: localhost\r\nx-api-key: tml-holds\r\n"
    b"content-type: application/x-protobuf\r\ncontent-length: 1000000\r\n\r\n"
)


@pytest.fixture
def relayed(start, tiny_llama_dir, tmp_path):
    """relayed(*options): a server, a relay before it, and a client behind that."""
    made = []

    def one(*options):
        server = start(tiny_llama_dir, tmp_path / "state", "--log-level", "off", *options)
        relay = Relay(server.url)
        made.append((server, relay))
        return server, relay, tinker.ServiceClient(base_url=relay.url, api_key="tml-relayed")

    yield one
    for server, relay in made:
        relay.close()
        assert server.stop() == 0


def test_a_training_request_beyond_the_byte_limit_is_503_after_its_patience_and_comes_again(
    relayed,
):
    mib = str(1 << 20)  # the least there may be: room for one body at a time
    server, relay, service = relayed("--max-body-bytes", mib, "--max-body-bytes-total", mib)
    client = trainer(service).result()
    rows = [datum([3 + (i * n) % 300 for i in range(60)]) for n in range(1, 301)]
    begun = {}
    relay.before = lambda route, body: begun.setdefault(route, (time.monotonic(), len(body)))
    with Wire(server.url).connect() as holder:
        holder.sendall(HEAD + bytes(900_000))  # and no more, so that it keeps its room
        time.sleep(0.5)
        passed = client.forward_backward(rows, "cross_entropy")
        wait_until(lambda: relay.of("forward_backward"), 2 * PATIENCE)
        at, num_bytes = begun["forward_backward"]
        assert 64 << 10 < num_bytes < 1 << 20, "what is shorter never waits, what is longer is 413"
        assert PATIENCE - 1 < time.monotonic() - at < PATIENCE + 15
        (refused,) = relay.of("forward_backward")
        assert refused.status == 503
        assert 1 <= int(refused.headers["retry-after"]) <= 10
    told = passed.result(60)
    assert [each.status for each in relay.of("forward_backward")][-1] == 200
    again = client.forward(rows, "cross_entropy").result()
    assert told.metrics["loss:sum"] == again.metrics["loss:sum"]
    assert client.optim_step(types.AdamParams()).result().metrics["step"] == 1


def test_samples_beyond_the_engines_queue_are_429_and_come_again(relayed):
    _, relay, service = relayed("--max-queued", "1", "--max-given", "1")
    sample_twelve(service)
    statuses = [each.status for each in relay.of("asample")]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) == 24, "12, and the same again one by one"
