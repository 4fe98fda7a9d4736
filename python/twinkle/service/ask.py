"""`python -m twinkle.service.ask`: a GET of a service, for commands of `twinkle` that ask one."""

import http.client
import json
import sys
import urllib.error
import urllib.request

_PATIENCE = 40  # seconds


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The key is for the named server alone."""

    def redirect_request(self, *_):
        return None


def ask(url, key):
    """The status and the text of the answer; status 0: there is none, and why."""
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        request = urllib.request.Request(url, headers={"x-api-key": key} if key else {})
        with opener.open(request, timeout=_PATIENCE) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, str(getattr(error, "reason", error))


def main():
    """Reads a line of JSON, {"url", "key"}, and answers with one, {"status", "text"}."""
    asked = json.loads(sys.stdin.readline())
    status, text = ask(asked["url"], asked["key"])
    print(json.dumps({"status": status, "text": text}), flush=True)


if __name__ == "__main__":
    main()
