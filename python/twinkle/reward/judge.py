"""The process in which math-verify compares answers; it ends itself when one takes too long.

Standard input has lines of JSON, [limit in seconds of processor time, reply, truth]. For each of
them standard output gets [equal, error]: error is |reply / truth - 1| of real numbers, else null.
"""

import json
import resource
import signal
import sys

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

_TARGETS = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
_MOST_BYTES = 4 << 30
_NEAR = 1e-5  # numbers with a larger relative error differ, whatever math-verify rounds them to


def _parsed(text):
    return parse(f"\\boxed{{{text}}}", _TARGETS, parsing_timeout=None)


def _error(reply, truth):
    values = [getattr(parsed[0], "rhs", parsed[0]) if parsed else None for parsed in (reply, truth)]
    if any(getattr(value, "is_real", None) is not True or value.free_symbols for value in values):
        return None
    a, b = (value.evalf() for value in values)
    return float(min(abs(a / b - 1), 1000)) if b else None


def _compared(reply, truth):
    reply, truth = _parsed(reply), _parsed(truth)
    equal, error = verify(truth, reply, timeout_seconds=None), _error(reply, truth)
    return [bool(equal) and (error is None or error < _NEAR), error]


def main():
    """Answers until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    _compared(r"\frac{x}{2}+1", "1+0.5x")  # the first one builds tables, outside of any limit
    print("ready", flush=True)
    for line in sys.stdin:
        limit, reply, truth = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit)  # its signal ends the process
        try:
            answer = _compared(reply, truth)
        except Exception:  # math-verify cannot take it: not equal
            answer = [False, None]
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
