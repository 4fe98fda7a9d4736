"""The way to one server: headers, numbers that keep a repeated request from being done twice,
repeats while the server is away, and errors in words. Connections are kept, one for each thread."""

import http.client
import itertools
import os
import ssl
import threading
import time
import uuid
from contextlib import contextmanager
from urllib.parse import quote, urlencode, urlsplit

from twinkle import checks, errors
from twinkle.logger import get_logger
from twinkle_client import body

_ERRORS = {
    400: errors.InvalidError, 401: errors.InvalidError, 403: errors.InvalidError,
    404: errors.NotFoundError, 409: errors.ConflictError, 410: errors.NotFoundError,
    429: errors.BusyError, 501: errors.NotAvailableError, 503: errors.BusyError,
}  # fmt: skip
_LATER = {429, 502, 503, 504}  # the server, or a proxy before it, has not taken the request
_REMEDIES = {
    401: "give init_twinkle_client the right api_key, or set TWINKLE_SERVER_TOKEN",
    413: "send a smaller batch, or ask the operator for a larger --max-body-bytes",
}


class NoServerError(errors.TwinkleError, ConnectionError):
    """No answer comes from the server."""


class Connection:
    """Requests to the server at `base_url`, with `api_key`, of one session.

    timeout: seconds that an answer may take, after which a request is repeated. patience: seconds
    for which one is repeated while no server answers, or answers that it is busy.
    """

    timeout, patience = 600, 300

    def __init__(self, base_url=None, api_key=None):
        url = base_url or os.environ.get("TWINKLE_SERVER_URL") or "http://127.0.0.1:8000"
        key = api_key or os.environ.get("TWINKLE_SERVER_TOKEN") or "EMPTY_TOKEN"
        must = "http://HOST:PORT or https://HOST:PORT, with a path where the server has one"
        try:
            self._place = urlsplit(checks.text("client: base_url", url).rstrip("/"))
            is_right = self._place.port != 0 and self._place.hostname and not self._place.query
        except ValueError:
            is_right = False
        if not is_right or self._place.scheme not in ("http", "https"):
            checks.refuse("client: base_url", url, must)
        if not (isinstance(key, str) and key.isascii() and key.isprintable()):
            raise errors.InvalidError("client: api_key has characters that no header takes")
        self.base_url = url.rstrip("/").removesuffix("/api/v1") + "/api/v1"
        self.api_key, self.session_id = key, None
        self._root = self._place.path.removesuffix("/api/v1") + "/api/v1"
        self._name = uuid.uuid4().hex  # tells this client's requests from others' in logs
        self._turns = {}  # adapter: (lock, counter of its requests)
        self._threads = threading.local()

    # ---- requests

    def get(self, path, **query):
        """The answer's JSON. The errors of `send`."""
        query = {name: value for name, value in query.items() if value is not None}
        return self.send("GET", path + (f"?{urlencode(query)}" if query else ""))

    def post(self, path, fields):
        """The answer of a request that may come twice. The errors of `send`."""
        return self.send("POST", path, fields)

    def in_turn(self, method, path, fields, adapter):
        """The answer of a request that must not be done twice: it has the next number of its
        adapter, of which one request at a time is on its way. The errors of `send`."""
        with self._turn(adapter or "") as number:
            return self.send(method, path, fields, {"X-Twinkle-Seq": str(number)})

    @contextmanager
    def _turn(self, adapter):
        lock, numbers = self._turns.setdefault(adapter, (threading.Lock(), itertools.count(1)))
        with lock:
            yield next(numbers)

    def send(self, method, path, fields=None, headers=(), patience=None):
        """The answer's value. NoServerError: there is none in `patience` seconds, those of the
        class by default; BusyError: the server says for as long that it is busy; InvalidError,
        NotFoundError, ConflictError, NotAvailableError, InternalError: it refuses, and says why."""
        patience = self.patience if patience is None else patience
        kind, data = body.encode(fields) if fields is not None else (None, None)
        headers = self._headers(kind) | dict(headers)
        deadline = None
        for tries in itertools.count():
            status = wait = None
            try:
                status, kind, answer, wait = self._once(method, self._root + path, data, headers)
                if status not in _LATER:
                    break
                why = f"it answers {status}, {_detail(kind, answer)}"
            except ssl.SSLError as error:
                raise NoServerError(f"client: {self.base_url} is not trusted: {error}") from None
            except (OSError, http.client.HTTPException) as error:
                why = str(error) or type(error).__name__
            deadline = deadline or time.monotonic() + patience
            # At once after the first failure: a connection that was kept may have been closed.
            pause = wait or 0.05 * (2 ** min(tries, 6) - 1)
            if pause and time.monotonic() + pause > deadline:
                if status is None:
                    raise self._no_server(why)
                break
            if tries == 1:
                asked = f"{method} {path} ({why}): asking again for {patience} s"
                get_logger().warning(f"client: {self.base_url} has no answer for {asked}")
            time.sleep(pause)
        if status >= 300:
            raise self._refusal(status, f"{method} {path}", _detail(kind, answer))
        try:
            return body.decode(kind, answer)
        except errors.InvalidError as error:
            text = f"{error} (the answer of {method} {path})"
            raise errors.InternalError(text) from None

    def _headers(self, kind):
        headers = {
            "Authorization": f"Bearer {self.api_key}",
            "Accept": f"{body.TENSORS}, {body.JSON}",
            "X-Request-Id": self._name,
        }
        if kind is not None:
            headers["Content-Type"] = kind
        if self.session_id is not None:
            headers["X-Twinkle-Session-Id"] = self.session_id
        return headers

    def _once(self, method, path, data, headers):
        """(status, Content-Type, bytes, seconds of Retry-After or None)."""
        kept, owner = getattr(self._threads, "kept", (None, None))
        if owner != os.getpid():  # a fork has a copy of its parent's
            secure = self._place.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            kept = kind(self._place.hostname, self._place.port, timeout=self.timeout)
            self._threads.kept = kept, os.getpid()
        try:
            kept.request(method, path, data, headers)
            answer = kept.getresponse()
            given = answer.read()
        except BaseException:  # an interrupt, too, leaves it in the middle of an answer
            kept.close()
            raise
        after = answer.headers.get("Retry-After", "")
        kind = answer.headers.get_content_type()
        return answer.status, kind, given, float(after) if after.isdigit() else None

    # ---- errors

    def _no_server(self, why):
        return NoServerError(
            f"client: no answer from {self.base_url} ({why}): start `twinkle serve` there, or give "
            "init_twinkle_client another base_url, or set TWINKLE_SERVER_URL"
        )

    def _refusal(self, status, request, detail):
        kind = _ERRORS.get(status, errors.InvalidError if status < 500 else errors.InternalError)
        remedy = f": {_REMEDIES[status]}" if status in _REMEDIES else ""
        error = kind(f"client: {detail}{remedy} (status {status} of {request})")
        error.status = status
        return error


def _detail(kind, answer):
    """The text of a refusal."""
    try:
        told = body.decode(kind, answer)
        detail = told.get("detail") or told["error"]
    except (errors.InvalidError, AttributeError, KeyError):
        detail = answer[:500].decode(errors="replace").strip()
    if isinstance(detail, list):  # FastAPI's: a dict for each field
        detail = "; ".join(str(each) for each in detail)
    return str(detail) or "no reason is given"


def path_of(name):
    """A name in a path of a URL; its slashes stay."""
    return quote(checks.text("client: a name in a path", name), safe="/")
