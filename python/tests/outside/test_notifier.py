"""Notifiers: a robot of our own over loopback, and processes that end by an exception."""

import base64
import hashlib
import hmac
import json
import socket
import subprocess
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from twinkle.errors import InternalError, InvalidError, NotFoundError
from twinkle.notifier import DingNotifier, Notifier, notify_exception


class Robot(BaseHTTPRequestHandler):
    def do_POST(self):
        robot = self.server
        robot.queries.append(dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query)))
        robot.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(robot.status)
        self.end_headers()
        self.wfile.write(robot.answer)

    def log_message(self, *args):
        pass


@pytest.fixture
def robot(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Robot)
    server.url = f"http://127.0.0.1:{server.server_port}/robot/send?access_token=t"
    server.queries, server.messages = [], []
    server.status, server.answer = 200, b'{"errcode": 0, "errmsg": "ok"}'
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_message_arrives_as_markdown_with_its_first_line_as_title(robot):
    answer = DingNotifier(robot.url)("\n### Done 完成\n\n- loss 0.1")
    assert answer == {"errcode": 0, "errmsg": "ok"}
    assert robot.queries == [{"access_token": "t"}]
    text = "\n### Done 完成\n\n- loss 0.1"
    assert robot.messages == [
        {"msgtype": "markdown", "markdown": {"title": "Done 完成", "text": text}}
    ]
    DingNotifier(robot.url)("x" * 100)
    assert robot.messages[1]["markdown"]["title"] == "x" * 64


def test_a_secret_signs_the_time(robot):
    DingNotifier(robot.url, secret="SEC")("hi")
    (query,) = robot.queries
    signed = f"{query['timestamp']}\nSEC".encode()
    expected = base64.b64encode(hmac.digest(b"SEC", signed, hashlib.sha256)).decode()
    assert query["sign"] == expected and query["access_token"] == "t"


def test_refusals_and_silence_are_told_without_the_address(robot):
    robot.answer = b'{"errcode": 310000, "errmsg": "sign not match"}'
    with pytest.raises(InternalError, match=r"DingTalk refuses the message.*sign not match"):
        DingNotifier(robot.url)("hi")
    robot.status = 500
    with pytest.raises(NotFoundError, match="DingTalk cannot be reached: HTTP Error 500") as error:
        DingNotifier(robot.url)("hi")
    assert "access_token" not in str(error.value)
    robot.status, robot.answer = 200, b"<html>"
    with pytest.raises(NotFoundError, match="DingTalk cannot be reached"):
        DingNotifier(robot.url)("hi")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"ding_url": ""}, "ding_url is '', it must be a text"),
        ({"ding_url": "oapi"}, "ding_url must be https://HOST/PATH or"),
        ({"ding_url": "https://a b/?access_token=key"}, "ding_url must be https://HOST/PATH or"),
        ({"ding_url": "https://a:port/"}, "ding_url must be https://HOST/PATH or"),
        ({"ding_url": "https://a:99999/"}, "ding_url must be https://HOST/PATH or"),
        ({"ding_url": "https:///x"}, "ding_url must be https://HOST/PATH or"),
        ({"ding_url": "https://[a/"}, "ding_url must be https://HOST/PATH or"),
        ({"ding_url": "https://a/\n"}, "ding_url must be https://HOST/PATH or"),
        ({"ding_url": "https://a/é"}, "ding_url must be https://HOST/PATH or"),
        ({"ding_url": "https://a", "secret": 3}, "secret is 3, it must be a text"),
        ({"ding_url": "https://a", "timeout": 0}, "timeout is 0, it must be a number above 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(InvalidError, match=text) as error:
        DingNotifier(**arguments)
    assert "key" not in str(error.value)


def test_an_answer_that_is_no_http_is_told():
    def answer():
        connection, _ = server.accept()
        connection.recv(65536)
        connection.sendall(b"no http\r\n\r\n")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(NotFoundError, match="DingTalk cannot be reached: no http"):
            DingNotifier(f"http://127.0.0.1:{server.getsockname()[1]}/")("hi")


def test_a_notifier_goes_through_json():
    one = DingNotifier("https://a", secret="s", timeout=1)
    again = Notifier.from_dict(json.loads(json.dumps(one.to_dict())))
    assert type(again) is DingNotifier and vars(again) == vars(one)

    class Slack(Notifier):
        def __init__(self, url):
            self.url = url

    assert Notifier.from_dict(Slack("u").to_dict()).url == "u"
    with pytest.raises(InvalidError, match="class is 'Pigeon', it must be 'DingNotifier'"):
        Notifier.from_dict({"class": "Pigeon"})
    with pytest.raises(NotImplementedError, match="Slack must define __call__"):
        Slack("u")("message")


def test_an_exception_is_told_once_and_a_failing_notifier_does_not_hide_it(logged):
    told = []
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError as error:
        for _ in range(2):
            notify_exception(told.append, "step", error, "run")
    (message,) = told
    assert message.startswith("### [Twinkle] `run`: exception in `step`\n")
    assert "`ZeroDivisionError`" in message and "1 / 0" in message
    notify_exception(None, "step", ValueError())

    def fails(message):
        raise RuntimeError("no network")

    notify_exception(fails, "step", ValueError("x"))
    assert logged == ["notifier: function did not get through: no network"]


RUN = """
import os, sys, twinkle
from twinkle.notifier import Notifier

class Print(Notifier):
    def __init__(self, mark):
        self.mark = mark
    def __call__(self, message):
        print(self.mark, message.splitlines()[0])

twinkle.initialize(name="mine", notifier=Print("first"))
twinkle.initialize(name="mine", notifier=Print("told"))
print(os.environ["TWINKLE_NOTIFIER"])
raise eval(sys.argv[1])
"""


@pytest.mark.parametrize("raised", ["ValueError('boom')", "KeyboardInterrupt()", "SystemExit(0)"])
def test_what_ends_the_process_is_told_once(raised):
    done = subprocess.run([sys.executable, "-c", RUN, raised], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert json.loads(lines[0]) == {"class": "Print", "mark": "told"}
    if raised.startswith("ValueError"):
        assert lines[1:] == ["told ### [Twinkle] `mine`: exception in `the main thread`"]
        assert "ValueError: boom" in done.stderr and done.returncode == 1
    else:
        assert lines[1:] == []
