"""A restored state beside clients and keys that went further than its backup."""

import re
from threading import Event

import pytest
from service.clients import ADAM, datum, steps, tinker, trainer, types
from service.relay import Relay
from service.wire import Wire, wait_until

SEEN = 20  # seconds in which a server sees a change of its keys: many times the one that it takes
PROMPT = types.ModelInput.from_ints([1, 5, 9])


@pytest.fixture
def serve(start, tiny_llama_dir, tmp_path):
    """serve(*options): a server on the folder "state", which is stopped at the end."""
    made = []

    def one(*options):
        made.append(start(tiny_llama_dir, tmp_path / "state", "--log-level", "off", *options))
        return made[-1]

    yield one
    for server in made:
        assert server.stop() == 0


@pytest.fixture
def copy(twinkle, tmp_path):
    def made():
        done = twinkle("backup", tmp_path / "backup", "--state", tmp_path / "state")
        assert done.returncode == 0, done.stderr

    return made


@pytest.fixture
def restore(twinkle, tmp_path):
    """restore(server): it is killed, and what is restored is served in its place."""

    def in_place(server):
        done = twinkle("restore", tmp_path / "backup", "--state", tmp_path / "again")
        assert done.returncode == 0, done.stderr
        server.kill()
        server.command[server.command.index(server.state)] = tmp_path / "again"
        server.start_again()

    return in_place


def not_known(error=tinker.NotFoundError):
    return pytest.raises(error, match="is not known")


def test_what_came_after_a_backup_is_not_known_and_is_nobody_elses(serve, copy, restore):
    server = serve()
    relay, may_poll = Relay(server.url), Event()
    may_poll.set()
    service = tinker.ServiceClient(base_url=relay.url, api_key="tml-went-on")
    client = trainer(service).result()
    steps(client, 1)
    before = client.model_id
    copy()

    steps(client, 1)
    path = client.save_state("later").result().path
    sampler = client.save_weights_and_get_sampling_client().result()
    later = trainer(service).result()  # a session in the backup
    another = tinker.ServiceClient(base_url=relay.url, api_key="tml-came-later")
    alone = trainer(another).result()
    relay.before = lambda route, _: route != "retrieve_future" or may_poll.wait(60)
    may_poll.clear()
    num_sent = len(relay.of("forward_backward"))
    accepted = later.forward_backward([datum()], "cross_entropy")
    wait_until(lambda: len(relay.of("forward_backward")) > num_sent)
    assert relay.of("forward_backward")[-1].status == 200
    restore(server)
    for key in ("tml-went-on", "tml-other"):  # its work must not be taken for theirs
        steps(trainer(server.client(key)).result(), 2)
    may_poll.set()

    with not_known(ValueError):  # the SDK's, with the server's text, where a poll is refused
        accepted.result(60)
    with not_known():
        later.optim_step(ADAM).result(60)
    with not_known():
        alone.forward_backward([datum()], "cross_entropy").result(60)
    with not_known():
        sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=2)).result(60)
    with not_known():
        service.create_training_client_from_state(path).result(60)
    wire = Wire(server.url, "tml-went-on")
    for request_id in (f"{before}:3", f"{before}:5", f"{later.model_id}:0", f"{later.model_id}:1"):
        answer = wire.post("retrieve_future", {"request_id": request_id})
        assert answer.status == 404
        assert f"'{request_id}' is not known" in answer.detail
    # Everything in the backup continues from there.
    assert isinstance(wire.result({"request_id": f"{before}:1"}), bytes)
    assert wire.result(wire.step(before, 3).json())["metrics"]["step"] == 2
    relay.close()


def test_a_key_that_was_revoked_after_a_backup_is_valid_again_until_it_is_revoked_there(
    serve, copy, restore, twinkle, tmp_path
):
    made = twinkle("keys", "create", "--state", tmp_path / "state", "--tenant", "alice")
    key, name = made.stdout.strip(), re.match(r"key (\w+) ", made.stderr)[1]
    server = serve()
    copy()

    def revoke(state):
        done = twinkle("keys", "revoke", name, "--state", tmp_path / state)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: Wire(server.url, key).post("create_session", {}).status == 401, SEEN)

    revoke("state")
    restore(server)
    assert Wire(server.url, key).post("create_session", {}).status == 200
    revoke("again")
    refused = Wire(server.url, key).post("create_session", {})
    assert refused.status == 401 and f"the key {name} is revoked" in refused.detail
