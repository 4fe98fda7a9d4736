"""A proxy between clients and a server, which tells what went through it and can disturb it."""

import http.client
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

OWN = {"connection", "transfer-encoding", "host"}  # headers of one connection


@dataclass
class Passed:
    """A request and the head of its answer."""

    route: str  # after /api/v1/
    body: bytes
    status: int
    headers: dict


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        relay = self.server.relay
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        route = self.path.rpartition("/api/v1/")[2]
        relay.before(route, body)
        place = urlsplit(relay.server_url)
        to = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        kept = {k: v for k, v in self.headers.items() if k.lower() not in OWN}
        try:
            to.request(self.command, self.path, body, kept)
            answer = to.getresponse()
            told = answer.read()
        except OSError:  # the server has ended
            self.close_connection = True
            return
        finally:
            to.close()
        headers = {k.lower(): v for k, v in answer.getheaders() if k.lower() not in OWN}
        relay.passed.append(Passed(route, body, answer.status, headers))
        if route in relay.losing:
            relay.losing.remove(route)
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(told)

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


class Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Relay:
    """`passed`: in the order of answers. `losing`: routes whose next answer does not come back.
    `before(route, body)`: called before a request goes on."""

    def __init__(self, server_url):
        self.server_url = server_url
        self.passed = []
        self.losing = []
        self.before = lambda route, body: None
        self.http = Http(("127.0.0.1", 0), Handler)
        self.http.relay = self
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        Thread(target=self.http.serve_forever, daemon=True).start()

    def of(self, route):
        return [each for each in self.passed if each.route == route]

    def close(self):
        self.http.shutdown()
        self.http.server_close()
