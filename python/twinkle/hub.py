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
from twinkle.hub_models import SMOLLM2, SMOLLM2_COPY, get, local, name_of
from twinkle.hub_operation import HubOperation

__all__ = ["SMOLLM2", "SMOLLM2_COPY", "HubOperation", "get", "local", "main", "name_of"]


def main(arguments=None):
    """The command line; returns the exit status: 0, or 1 with the error's text on stderr, or
    on stdout with --errors-on-stdout."""
    parser = argparse.ArgumentParser(
        prog="python -m twinkle.hub",
        description="Finds a model: a directory, an alias, smollm2, hf://owner/name, ms://owner/name.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    getter = commands.add_parser(
        "get", help="print the model's local directory, fetched if need be"
    )
    getter.add_argument(
        "id", help="directory, alias, smollm2, hf://owner/name or [ms://]owner/name"
    )
    getter.add_argument("--no-weights", action="store_true", help="leave a download's weights out")
    getter.add_argument(
        "--errors-on-stdout", action="store_true", help="for a program that reports them itself"
    )
    options = parser.parse_args(arguments)
    try:
        # Whatever the hubs' clients print must not come between the caller and the path.
        with contextlib.redirect_stdout(sys.stderr):
            path = get(options.id, weights=not options.no_weights)
    except TwinkleError as error:
        on_stdout = options.errors_on_stdout
        print(
            error if on_stdout else f"twinkle: {error}",
            file=sys.stdout if on_stdout else sys.stderr,
        )
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
