"""Keys of `twinkle serve` with the real `tinker` SDK: who comes in, what it sees, how it ends."""

import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from service.wire import wait_until

from twinkle.version import __version__

tinker = pytest.importorskip("tinker")
from tinker import types  # noqa: E402

SEEN = 20  # seconds in which a server sees a change of its keys: many times the one that it takes
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
    wait_until_known(server, key)
    return key


def ids(twinkle, state, tenant):
    said = twinkle("keys", "list", "--state", state, "--tenant", tenant).stdout
    keys = said.partition("\n\n")[0]  # limits follow it
    return [line.split()[0] for line in keys.splitlines()[1:]]


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


def wait_until_known(server, *keys):
    """Until the server has seen these keys, which have just been made."""
    for key in keys:
        wait_until(lambda key=key: status(server, key, "get_info", {"model_id": "x"}) != 401, SEEN)


def test_a_wrong_key_is_an_authentication_error_at_once(server):
    began = time.monotonic()
    with pytest.raises(tinker.AuthenticationError, match="is not known here"):
        trained(server.client("tml-wrong"))
    assert time.monotonic() - began < 40  # a repetition by the SDK takes a minute and more


def test_who_may_not_come_in_is_told_before_its_body_is_sent(server, alice, make):
    narrow = make("carol", "--scope", "metrics")
    wait_until_known(server, narrow)

    def told(key, path):
        """The server's answer to a head whose body of 100 MB does not come."""
        place = server.url.removeprefix("http://").split(":")
        with socket.create_connection(("127.0.0.1", int(place[1])), timeout=10) as peer:
            peer.sendall(
                f"POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nx-api-key: {key}\r\n"
                "Content-Length: 100000000\r\n\r\n".encode()
            )
            out = b""
            while part := peer.recv(4096):  # the server ends the connection
                out += part
        head, _, body = out.decode().partition("\r\n\r\n")
        assert "Connection: close" in head
        return int(head.split()[1]), json.loads(body)["detail"]

    assert told("tml-x", "forward_backward")[0] == 401
    assert told(narrow, "forward_backward")[0] == 403
    assert told(alice, "nowhere") == (404, "server: there is no POST /api/v1/nowhere")


def test_a_right_key_trains_saves_and_samples(server, alice):
    client = trained(server.client(alice))
    path = client.save_weights_for_sampler("a").result().path
    sampler = server.client(alice).create_sampling_client(model_path=path).result()
    params = types.SamplingParams(max_tokens=3)
    assert len(sampler.sample(PROMPT, 1, params).result().sequences[0].tokens) <= 3


def test_what_another_tenant_made_is_not_found(server, alice, make):
    path = trained(server.client(alice)).save_state("b").result().path
    bob, again = make("bob"), make("alice")
    wait_until_known(server, bob, again)
    with pytest.raises(tinker.NotFoundError, match="is not known"):
        server.client(bob).create_training_client_from_state(path).result()
    assert server.client(again).create_training_client_from_state(path).result().model_id


def test_a_key_of_another_scope_is_a_permission_error(server, make):
    key = make("carol", "--scope", "sample")
    wait_until_known(server, key)
    service = server.client(key)
    assert service.create_sampling_client(base_model="tiny").result()
    with pytest.raises(tinker.PermissionDeniedError, match="lacks the scope 'train'"):
        service.create_lora_training_client("tiny", rank=4).result()


def test_what_began_before_a_key_was_revoked_ends_and_then_it_is_401(server, twinkle, state, make):
    key = make("dora")
    wait_until_known(server, key)
    client = trained(server.client(key))
    last = client.forward_backward([DATUM] * 8, "cross_entropy")
    (name,) = ids(twinkle, state, "dora")
    assert twinkle("keys", "revoke", name, "--state", state).stdout.startswith(f"revoked {name} ")
    wait_until(lambda: status(server, key, "create_session", {}) == 401, SEEN)
    assert len(last.result().loss_fn_outputs) == 8
    # The number of an accepted request, whose answer may have been lost; not of a refused one.
    assert status(server, key, "retrieve_future", {"request_id": f"{client.model_id}:3"}) == 200
    assert status(server, key, "retrieve_future", {"request_id": f"{client.model_id}:4"}) == 401
    with pytest.raises(tinker.AuthenticationError, match=f"the key {name} is revoked"):
        client.forward_backward([DATUM], "cross_entropy").result()
    # Nor does the SDK lose the answer while it sends, though the body is not read.
    tokens = list(range(1, 1001))
    many = types.Datum(
        model_input=types.ModelInput.from_ints(tokens),
        loss_fn_inputs={"target_tokens": [*tokens[1:], 1], "weights": [1.0] * 1000},
    )
    with pytest.raises(tinker.AuthenticationError, match=f"the key {name} is revoked"):
        client.forward_backward([many] * 300, "cross_entropy").result()


def test_the_log_says_who_asked_for_what_and_no_key(start, tiny_llama_dir, tmp_path, twinkle):
    made = twinkle("keys", "create", "--state", tmp_path / "state", "--tenant", "alice")
    key, name = made.stdout.strip(), re.match(r"key (\w+) ", made.stderr)[1]
    with (tmp_path / "log").open("w") as log:
        server = start(tiny_llama_dir, tmp_path / "state", "--log-level", "debug", log=log)
        client = trained(server.client(key))
        assert server.stop() == 0
    text = (tmp_path / "log").read_text()
    who = rf"peer=127.0.0.1 bytes=\d+ tenant=alice key={name}"
    assert re.search(
        rf"forward_backward 200 [0-9.]+ ms id=\w+-\d+ {who} promise={client.model_id}:1\n", text
    )
    assert re.search(
        rf"retrieve_future 200 [0-9.]+ ms id=\w+-\d+ {who} promise={client.model_id}:2\n", text
    )
    ids = re.findall(r" id=(\S+)", text)
    assert len(ids) == len(set(ids)) > 5
    assert key not in text and key.removeprefix("tml-") not in text


def test_the_log_begins_with_the_version_and_warns_of_keys_that_cannot_be_read(
    start, tiny_llama_dir, tmp_path, twinkle
):
    state, told = tmp_path / "state", tmp_path / "log"
    assert twinkle("keys", "create", "--state", state, "--tenant", "alice").returncode == 0
    file = state / "keys.json"
    keys = file.read_text()
    with told.open("w") as log:
        server = start(tiny_llama_dir, state, log=log)
        file.write_text("{")
        wait_until(lambda: "; until it is mended nobody comes in" in told.read_text())
        file.write_text(keys)
        wait_until(lambda: f"server: {file} can be read again" in told.read_text())
        assert server.stop() == 0
    first, *lines = told.read_text().splitlines()
    begin = f" info twinkle {__version__}, state: {state}, auth: keys, of which 1 is valid"
    assert first.endswith(begin)
    warnings = [line for line in lines if str(file) in line]
    assert [line.split()[1] for line in warnings] == ["warning"] * 2, "each once"


def limit(twinkle, state, tenant, *arguments):
    done = twinkle("keys", "limit", "--state", state, "--tenant", tenant, *arguments)
    assert done.returncode == 0, done.stderr
    time.sleep(5)  # the server looks each second


def test_what_is_beyond_a_tenants_rate_waits_and_is_done(server, twinkle, state, make):
    key, others = make("greta"), make("hans", "--scope", "train")
    limit(twinkle, state, "greta", "--tokens-per-minute", "240")
    client = trained(server.client(key))  # 4 tokens of the 240 that may be used at once
    began = time.monotonic()  # before the pass, in which the debt begins
    client.forward_backward([DATUM] * 79, "cross_entropy").result()  # owes 80, which is 20 s
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(client.forward_backward([DATUM], "cross_entropy").result)
        other = trained(server.client(others))
        assert not waits.done(), "one tenant's rate delays another"
        assert other.model_id
        assert waits.result().loss_fn_outputs
    assert time.monotonic() - began > 17


def test_what_is_beyond_a_tenants_amounts_is_refused_and_its_use_is_told(
    server, twinkle, state, make
):
    key, reader = make("ida"), make("operator", "--scope", "metrics")
    limit(twinkle, state, "ida", "--max-runs", "1", "--max-adapters", "1")
    service = server.client(key)
    client = trained(service)
    with pytest.raises(tinker.UnprocessableEntityError, match="has 1 runs, its limit is 1"):
        trained(service)
    client.save_weights_for_sampler("a").result()
    with pytest.raises(tinker.UnprocessableEntityError, match="has 1 adapters"):
        client.save_weights_for_sampler("b").result()
    client.forward_backward([DATUM], "cross_entropy").result()  # its run goes on
    with suppress(TimeoutError):  # bench/service/sdk.py says why
        service.close("success").result(timeout=30)
    assert trained(server.client(key)).model_id
    request = urllib.request.Request(f"{server.url}/api/v1/usage", headers={"x-api-key": reader})
    lines = json.load(urllib.request.urlopen(request, timeout=40))["usage"]
    (line,) = [line for line in lines if line["run"] == client.model_id]
    assert line["tenant"] == "ida" and line["key"] in ids(twinkle, state, "ida")
    assert line["trained_tokens"] == 8 and line["requests"] == 5
    assert 0 < line["compute_seconds"] < 60
    told = twinkle("usage", "--url", server.url + "/", "--key", key)
    head, *rows, gap, names, amounts = told.stdout.splitlines()
    assert told.returncode == 0 and gap == ""
    assert {row.split()[0] for row in rows} == {"ida"}
    (row,) = [row for row in rows if client.model_id in row]
    assert head.split()[:4] == ["tenant", "key", "run", "requests"]
    assert row.split()[:2] == ["ida", line["key"]] and row.split()[-5:-1] == ["5", "8", "0", "0"]
    assert names.split() == ["tenant", "runs", "adapters", "disk-bytes"]
    assert amounts.split() == ["ida", "1", "of", "1", "1", "of", "1", "-"]
    everybody = twinkle("usage", "--url", server.url, "--key", reader)
    assert row in everybody.stdout.splitlines()


@pytest.mark.parametrize(
    ("status", "arguments", "text"),
    [
        (2, ["--url", "ftp://x"], "--url is 'ftp://x', it must begin with http:// or https://"),
        (1, ["--url", "http://127.0.0.1:1"], "nothing answers at http://127.0.0.1:1: "),
        (1, ["--url", "http://[x"], "nothing answers at http://[x: "),
        (1, ["--key", "tml-nobody"], "answers 401: server: the key is not known here"),
        (1, ["--key", "a\nb"], "nothing answers at"),
        (1, ["--key", ""], "name a key by --key or TINKER_API_KEY"),
    ],
)
def test_usage_says_why_it_has_none(server, twinkle, monkeypatch, status, arguments, text):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    done = twinkle("usage", *(["--url", server.url] if "--key" in arguments else []), *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("twinkle: cli: ") and text in done.stderr, done.stderr


def test_usage_follows_no_server_elsewhere_and_takes_no_page_for_an_answer(twinkle):
    seen = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.path)
            self.send_response(302 if self.path.startswith("/away") else 200)
            self.send_header("Location", "/stolen")
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        away = twinkle("usage", "--url", url + "/away", "--key", "tml-secret")
        page = twinkle("usage", "--url", url, "--key", "tml-secret")
        other.shutdown()
    assert away.returncode == 1 and "answers 302" in away.stderr
    assert page.returncode == 1 and "is no service of Twinkle's" in page.stderr
    assert seen == ["/away/api/v1/usage", "/api/v1/usage"]


def test_runs_of_a_key_with_a_higher_priority_go_before_their_tenants_others(
    server, twinkle, state, make
):
    others, first = make("jana"), make("jana", "--priority", "1", "--weight", "2")
    listed = twinkle("keys", "list", "--state", state, "--tenant", "jana").stdout.splitlines()
    assert [re.split(r"Z +", line)[1].split() for line in listed[1:]] == [
        ["-", "-", "valid"],
        ["2", "1", "valid"],
    ]
    wait_until_known(server, others, first)
    waits, goes = trained(server.client(others)), trained(server.client(first))
    tokens = [(i * i) % 300 + 3 for i in range(400)]
    long = types.Datum(
        model_input=types.ModelInput.from_ints(tokens),
        loss_fn_inputs={"target_tokens": [*tokens[1:], 3], "weights": [1.0] * 400},
    )

    def queued(client):
        sent = [client.forward_backward([long] * 32, "cross_entropy") for _ in range(10)]
        return [pool.submit(each.result) for each in sent]

    def num_done():
        return sum(each.done() for each in behind)

    with ThreadPoolExecutor(20) as pool:
        behind, before = queued(waits), queued(goes)
        before[0].result()
        had = num_done()
        before[-1].result()
        assert num_done() - had <= 3, "nine at equal places"
        assert behind[-1].result().loss_fn_outputs


def test_without_keys_a_server_is_for_its_own_machine(twinkle, tiny_llama_dir, tmp_path):
    for more in ([], ["--auth", "open"]):
        done = twinkle("serve", "--model", tiny_llama_dir, "--state", tmp_path, "--port", "0",
                       "--host", "0.0.0.0", *more)  # fmt: skip
        assert done.returncode == 2
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
    wait_until_known(server, key, gone)
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
