"""Requests that a broken line cuts: each is sent again, and done once."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from features import drawn
from service.twinkle.conftest import with_adapter

from twinkle.errors import BusyError, TwinkleError
from twinkle.logger import get_logger
from twinkle_client import NoServerError
from twinkle_client.sampler import vLLMSampler

MODEL = "model/tiny/twinkle/"
TRAINS = [MODEL + verb for verb in ("forward_backward", "clip_grad_and_step", "forward_backward")]


def losses(model):
    """Three steps, and a sample of what they made."""
    found = []
    for step in range(3):
        found.append(model.forward_backward(inputs=drawn([7, 5], seed=step))["loss"])
        found.append(model.clip_grad_and_step())
    model.save("done")
    (reply,) = vLLMSampler("tiny").sample({"input_ids": [1, 93]}, max_tokens=4, adapter_name="own")
    return found, reply.sequences[0].tokens


def test_answers_that_do_not_come_back_are_asked_for_again_and_nothing_is_done_twice(
    connect, relay, served
):
    expected = losses(with_adapter(connect()))
    client = connect(relay.url)
    relay.losing += [
        MODEL + "add_adapter_to_model",
        *TRAINS,
        MODEL + "save",
        "sampler/tiny/twinkle/sample",
    ]
    assert losses(with_adapter(client)) == expected
    assert not relay.losing
    run = f"{client.session_id}-own"
    done = [verb for verb, of in served.does if of == run]
    steps = ["forward_backward", "clip_grad_and_step"] * 3
    assert done == ["add_adapter_to_model", "set_optimizer", *steps, "save"]


def test_requests_that_do_not_arrive_are_sent_again(connect, relay):
    expected = losses(with_adapter(connect()))
    client = connect(relay.url)
    cut = [*TRAINS]

    def before(route, body):
        if route in cut:
            cut.remove(route)
            raise ConnectionError("cut")

    relay.before = before
    relay.http.handle_error = lambda *_: None
    assert losses(with_adapter(client)) == expected and not cut


class Scripted(BaseHTTPRequestHandler):
    """Gives the answers of `server.answers` in turn, the last one for ever: (status, headers,
    body); None: one that ends early."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        answers = self.server.answers
        self.server.seen.append((self.path, dict(self.headers)))
        if self.path.endswith("create_session"):
            status, headers, data = 200, {}, b'{"session_id": "s"}'
        else:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if answer is None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
                self.close_connection = True
                return
            status, headers, data = answer
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_DELETE = do_POST  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def scripted(connect):
    """A server that gives scripted answers, and its client."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.daemon_threads, server.seen, server.answers = True, [], [(200, {}, b"{}")]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = connect(f"http://127.0.0.1:{server.server_port}/deep/api/v1/", "k")
    yield server, client
    server.shutdown()
    server.server_close()


def test_a_busy_server_is_asked_again_with_the_same_number(scripted):
    server, client = scripted
    busy = (503, {"Retry-After": "0"}, b'{"detail": "full"}')
    server.answers = [busy, busy, (200, {}, b'{"success": true, "message": ""}')]
    assert client.delete_checkpoint("run", "weights/a b").success
    assert client.delete_checkpoint("run", "weights/c").success
    sent = [each for each in server.seen if "checkpoints" in each[0]]
    assert [headers["X-Twinkle-Seq"] for _, headers in sent] == ["1", "1", "1", "2"]
    path, headers = sent[0]
    assert path == "/deep/api/v1/twinkle/training_runs/run/checkpoints/weights/a%20b"
    assert headers["Authorization"] == "Bearer k" and headers["X-Twinkle-Session-Id"] == "s"
    client.connection.patience = 0
    server.answers = [busy]
    with pytest.raises(BusyError, match=r"client: full \(status 503 of DELETE"):
        client.delete_checkpoint("run", "weights/c")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((500, {}, b'{"detail": "internal error"}'), r"internal error \(status 500 of GET"),
        ((418, {"Content-Type": "text/html"}, b"<b>tea"), r"<b>tea \(status 418"),
        ((422, {}, b'{"detail": [{"loc": ["a"], "msg": "no"}]}'), "'msg': 'no'"),
        ((400, {}, b'{"error": "old"}'), r"old \(status 400"),
        ((404, {}, b""), "no reason is given"),
        ((200, {}, b'{"max_loras": 1'), "a body is no application/json"),
        ((200, {"Content-Type": "application/x-safetensors"}, b"\x09" + b"\0" * 9), "head is long"),
        ((200, {}, b'{"max_loras": 1}'), "the server's CapacityInfo is none"),
        ((200, {}, b"[]"), "the server's CapacityInfo is none"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_an_error_in_words(scripted, answer, text):
    server, client = scripted
    server.answers = [answer]
    with pytest.raises(Exception, match=text) as caught:
        client.get_capacity_info()
    assert isinstance(caught.value, TwinkleError), caught.value


def test_an_answer_that_ends_early_is_asked_for_again_until_patience_ends(scripted):
    server, client = scripted
    client.connection.patience = 0
    server.answers = [None]
    with pytest.raises(NoServerError, match=r"no answer from .*IncompleteRead"):
        client.get_capacity_info()


def test_heartbeats_go_on_until_the_session_ends(scripted, connect, monkeypatch):
    (server, _), logged = scripted, []
    monkeypatch.setattr(get_logger(), "warning", logged.append)
    server.answers = [
        (200, {}, b"{}"),
        (503, {}, b"{}"),
        (404, {}, b'{"detail": "Unknown session"}'),
    ]
    client = connect(f"http://127.0.0.1:{server.server_port}", "k", session_heartbeat_interval=0.01)
    (beat,) = [
        t for t in threading.enumerate()
        if t.name == "TwinkleSessionHeartbeat" and t._target.__self__ is client
    ]  # fmt: skip
    beat.join()
    assert any("the session has ended, make a new client" in text for text in logged)
