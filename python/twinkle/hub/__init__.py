"""Model ids to local directories: `get(id)` in Python, `python -m twinkle.hub get ID` for others.

An id is a directory, an alias (TWINKLE_MODEL_ID_ALIASES="id=path,id=path"), the built-in `smollm2`,
a Hugging Face id (`hf://owner/name`), a ModelScope id (`ms://owner/name`), or one without a prefix,
for which Hugging Face is asked first, then ModelScope. The built-in model is a copy that is rounded
to 4 bits, so the hubs' name of the model never means it.
"""

import argparse
import contextlib
import sys

from twinkle.errors import TwinkleError
from twinkle.hub.models import SMOLLM2, SMOLLM2_COPY, aliases_of, get, local, name_of
from twinkle.hub.operation import HubOperation

__all__ = [
    "SMOLLM2", "SMOLLM2_COPY", "HubOperation", "aliases_of", "get", "local", "main", "name_of",
]  # fmt: skip


def main(arguments=None, find=get):
    """The command line; returns the exit status: 0, or 1 with the error's text on stderr, or
    on stdout with --errors-on-stdout. find: what finds the id's path, of a model or of data."""
    parser = argparse.ArgumentParser(
        prog="python -m twinkle.hub",
        description="Finds a model: a directory, an alias, smollm2, hf://owner/name, ms://owner/name.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    getter = commands.add_parser("get", help="print its local directory, fetched if need be")
    getter.add_argument("id", help="a directory, an alias, smollm2, or [hf://|ms://]owner/name")
    getter.add_argument("--no-weights", action="store_true", help="leave a download's weights out")
    getter.add_argument("--errors-on-stdout", action="store_true", help="for programs that ask")
    options = parser.parse_args(arguments)
    try:
        # Whatever the hubs' clients print must not come between the caller and the path.
        with contextlib.redirect_stdout(sys.stderr):
            path = find(options.id, weights=not options.no_weights)
    except TwinkleError as error:
        here = options.errors_on_stdout
        print(error if here else f"twinkle: {error}", file=sys.stdout if here else sys.stderr)
        return 1
    print(path)
    return 0
