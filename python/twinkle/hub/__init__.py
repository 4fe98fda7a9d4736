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
    parser.add_argument("get", choices=["get"], help="print where it is, fetched if need be")
    parser.add_argument("id", help="a directory, an alias, smollm2, or [hf://|ms://]owner/name")
    parser.add_argument("--no-weights", action="store_true", help="leave a download's weights out")
    parser.add_argument("--errors-on-stdout", action="store_true", help="for programs that ask")
    options = parser.parse_args(arguments)
    try:
        # Whatever the hubs' clients print must not come between the caller and the path.
        with contextlib.redirect_stdout(sys.stderr):
            path = find(options.id, weights=not options.no_weights)
    except TwinkleError as error:
        print(error) if options.errors_on_stdout else print(f"twinkle: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0
