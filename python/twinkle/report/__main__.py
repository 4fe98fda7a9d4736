"""`python -m twinkle.report FOLDER --to TRACKERS`: the reporter of `twinkle train`."""

import argparse
import json
import sys

from twinkle.errors import TwinkleError
from twinkle.report import Report, trackers


def main(arguments=None):
    """Reads lines to the end of standard input. --check: 'ok', or why a tracker is not there."""
    parser = argparse.ArgumentParser("twinkle.report", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=".")
    parser.add_argument("--to", default="", help="trackers, separated by commas")
    parser.add_argument("--check", action="store_true", help="only look for the trackers")
    args = parser.parse_args(arguments)
    if args.check:
        try:
            trackers(args.to)
        except TwinkleError as error:
            sys.exit(print(error))
        sys.exit(print("ok"))
    with Report(args.folder, args.to) as report:
        for line in sys.stdin:
            report.log(json.loads(line))


if __name__ == "__main__":
    main()
