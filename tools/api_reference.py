"""Writes docs/api.md from twinkle/server/routes.def: api_reference.py [--check]. With --check it
writes nothing and exits with 1 if the page is another."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/api.md"
HEAD = """# The service's HTTP API

Made from `twinkle/server/routes.def`. Bodies and answers are JSON unless the text says otherwise;
the `tinker` SDK 0.38.0 is a client of it. The key goes into the header `x-api-key`. A promise
answers at once with `request_id`, by which `retrieve_future` gives its result, or `error` and
`category`. [docs/tinker.md](tinker.md) has the statuses, and what the wire leaves open. The routes
of OpenAI's API are in [docs/openai.md](openai.md).

| path | what it does | scope | journalled |
|---|---|---|---|
"""
ROUTE = re.compile(r"((?:^// .*\n)+)^ROUTE\(([^)]*)\)", re.MULTILINE)


def page():
    rows = []
    for comment, arguments in ROUTE.findall((ROOT / "twinkle/server/routes.def").read_text()):
        verb, path, _, kind, _, scope = (part.strip() for part in arguments.split(","))
        text = " ".join(line[3:] for line in comment.splitlines())
        path = path.strip('"')
        journalled = "yes" if kind == "kJournalled" else ""
        rows.append(f"| `{verb} {path}` | {text} | {scope[1:].lower()} | {journalled} |")
    return HEAD + "\n".join(rows) + "\n"


def main():
    if sys.argv[1:] == ["--check"]:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
