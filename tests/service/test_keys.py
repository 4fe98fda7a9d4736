"""Keys of `twinkle serve` with the real `tinker` SDK: who comes in, what it sees, how it ends."""

import json
import time
import urllib.error
import urllib.request

import pytest

tinker = pytest.importorskip("tinker")
from tinker import types  # noqa: E402

SEEN = 2.5  # seconds in which a server sees a change of its keys: one, and the time that it takes
ADAM = types.AdamParams(learning_rate=1e-2)
PROMPT = types.ModelInput.from_ints([1, 93, 198, 204])
DATUM = types.Datum(
    model_input=PROMPT,
    loss_fn_inputs={"target_tokens": [93, 198, 204, 2], "weights": [1.0] * 4},
)


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def make(twinkle, state):
    """make(tenant, *arguments): a key."""

    def made(tenant, *arguments):
        done = twinkle("keys", "create", "--state", state, "--tenant", tenant, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return made


@pytest.fixture(scope="module")
def server(start, tiny_llama_dir, state, make):
    """One that may listen anywhere, since it has keys."""
    make("first")
    it = start(tiny_llama_dir, state, "--host", "0.0.0.0")
    assert it.url.startswith("http://0.0.0.0:")
    yield it
    assert it.stop() == 0


@pytest.fixture(scope="module")
def alice(make, server):
    """A key that is made while the server runs."""
    key = make("alice")
    time.sleep(SEEN)
    return key


def ids(twinkle, state, tenant):
    lines = twinkle("keys", "list", "--state", state, "--tenant", tenant).stdout.splitlines()
    return [line.split()[0] for line in lines[1:]]


def trained(service):
    client = service.create_lora_training_client("tiny", rank=4, seed=1).result()
    client.forward_backward([DATUM], "cross_entropy").result()
    client.optim_step(ADAM).result()
    return client


def status(server, key, path, body):
    request = urllib.request.Request(
        f"{server.url}/api/v1/{path}",
        json.dumps(body).encode(),
        {"x-api-key": key, "content-type": "application/json"},
    )
    try:
        return urllib.request.urlopen(request, timeout=40).status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_wrong_key_is_an_authentication_error_at_once(server):
    began = time.monotonic()
    with pytest.raises(tinker.AuthenticationError, match="is not known here"):
        trained(server.client("tml-wrong"))
    assert time.monotonic() - began < 10  # what the SDK repeats takes a minute and more


def test_a_right_key_trains_saves_and_samples(server, alice):
    client = trained(server.client(alice))
    path = client.save_weights_for_sampler("a").result().path
    sampler = server.client(alice).create_sampling_client(model_path=path).result()
    params = types.SamplingParams(max_tokens=3)
    assert len(sampler.sample(PROMPT, 1, params).result().sequences[0].tokens) <= 3


def test_what_another_tenant_made_is_not_found(server, alice, make):
    path = trained(server.client(alice)).save_state("b").result().path
    bob, again = make("bob"), make("alice")
    time.sleep(SEEN)
    with pytest.raises(tinker.NotFoundError, match="is not known"):
        server.client(bob).create_training_client_from_state(path).result()
    assert server.client(again).create_training_client_from_state(path).result().model_id


def test_a_key_of_another_scope_is_a_permission_error(server, make):
    key = make("carol", "--scope", "sample")
    time.sleep(SEEN)
    service = server.client(key)
    assert service.create_sampling_client(base_model="tiny").result()
    with pytest.raises(tinker.PermissionDeniedError, match="lacks the scope 'train'"):
        service.create_lora_training_client("tiny", rank=4).result()


def test_what_began_before_a_key_was_revoked_ends_and_then_it_is_401(server, twinkle, state, make):
    key = make("dora")
    time.sleep(SEEN)
    client = trained(server.client(key))
    last = client.forward_backward([DATUM] * 8, "cross_entropy")
    (name,) = ids(twinkle, state, "dora")
    assert twinkle("keys", "revoke", name, "--state", state).stdout.startswith(f"revoked {name} ")
    time.sleep(SEEN)
    assert status(server, key, "create_session", {}) == 401
    assert len(last.result().loss_fn_outputs) == 8
    # Of an accepted request, whose answer may have been lost; not of one that never was.
    assert status(server, key, "retrieve_future", {"request_id": f"{client.model_id}:3"}) == 200
    assert status(server, key, "retrieve_future", {"request_id": f"{client.model_id}:4"}) == 401
    with pytest.raises(tinker.AuthenticationError, match=f"the key {name} is revoked"):
        client.forward_backward([DATUM], "cross_entropy").result()


def test_without_keys_a_server_is_for_its_own_machine(twinkle, tiny_llama_dir, tmp_path):
    for more in ([], ["--auth", "open"]):
        done = twinkle("serve", "--model", tiny_llama_dir, "--state", tmp_path, "--port", "0",
                       "--host", "0.0.0.0", *more)  # fmt: skip
        assert done.returncode == 1
        assert (
            "auth is open, which lets everybody in, and host '0.0.0.0' is no loopback"
            in done.stderr
        )
    done = twinkle("serve", "--model", tiny_llama_dir, "--state", tmp_path, "--auth", "keys")
    assert done.returncode == 1
    assert "keys.json does not exist; 'twinkle keys create' makes it" in done.stderr


def test_a_restart_knows_owners_and_which_keys_are_revoked(server, twinkle, state, make):
    """Last: it kills the server."""
    key, gone = make("erin"), make("frank")
    time.sleep(SEEN)
    path = trained(server.client(key)).save_state("c").result().path
    assert twinkle("keys", "revoke", "--tenant", "frank", "--state", state).returncode == 0
    server.kill()
    server.start_again()
    assert server.client(key).create_training_client_from_state(path).result().model_id
    with pytest.raises(tinker.AuthenticationError, match="is revoked"):
        trained(server.client(gone))
    journal = b"".join(part.read_bytes() for part in (state / "journal").iterdir())
    assert b"erin" in journal
    assert key.encode() not in journal and gone.encode() not in journal
