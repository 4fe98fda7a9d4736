"""DingNotifier: messages to a robot in a DingTalk group."""

import base64
import hmac
import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request

from twinkle import checks
from twinkle.errors import InternalError, NotFoundError, require
from twinkle.notifier.base import Notifier


class DingNotifier(Notifier):
    """ding_url: the robot's address with its access_token. secret: of a robot that wants messages
    signed. timeout: seconds for one message. InvalidError: an address that begins neither with
    http:// nor with https://, has no host, another port than a number, or a blank or other
    character that no address has; a secret that is no text or empty, a timeout that is not above 0.
    """

    def __init__(self, ding_url, secret=None, timeout=5.0):
        self.ding_url = checks.text("notifier: ding_url", ding_url)
        require(  # it is not shown: it holds the access token
            _is_address(self.ding_url),
            "notifier: ding_url must be https://HOST/PATH or https://HOST:PORT/PATH in ASCII "
            "without blanks: copy it again from the robot's settings",
        )
        self.secret = checks.text("notifier: secret", secret, none=True)
        self.timeout = checks.number("notifier: timeout", timeout, above=0)

    def __call__(self, message):
        """Sends Markdown, whose first line becomes the title; returns DingTalk's answer, a dict.

        NotFoundError: it cannot be reached; InternalError: it refuses the message.
        """
        text = checks.text("notifier: message", message)
        lines = (line.lstrip("# ").strip() for line in text.splitlines())
        content = {"title": next(filter(None, lines), "Twinkle")[:64], "text": text}
        request = urllib.request.Request(
            self._address(),
            data=json.dumps({"msgtype": "markdown", "markdown": content}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                answer = json.load(response)
        except (OSError, ValueError, http.client.HTTPException) as error:
            # without the address, which holds the access token
            raise NotFoundError(f"notifier: DingTalk cannot be reached: {error}") from None
        if not isinstance(answer, dict) or answer.get("errcode", 0) != 0:
            raise InternalError(f"notifier: DingTalk refuses the message: {answer}")
        return answer

    def _address(self):
        """With timestamp and sign where there is a secret, as DingTalk's custom robots want it."""
        if self.secret is None:
            return self.ding_url
        timestamp = str(round(time.time() * 1000))
        text = f"{timestamp}\n{self.secret}"
        signed = hmac.digest(self.secret.encode(), text.encode(), "sha256")
        query = {"timestamp": timestamp, "sign": base64.b64encode(signed).decode()}
        mark = "&" if "?" in self.ding_url else "?"
        return self.ding_url + mark + urllib.parse.urlencode(query)


def _is_address(url):
    """True if it is one of HTTP that http.client takes."""
    try:
        parts = urllib.parse.urlsplit(url)
        right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        return right and not re.search("[^!-~]", url)
    except ValueError:  # errors of a port, of brackets
        return False
