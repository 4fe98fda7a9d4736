"""Trajectories for the tests of rewards, and a guard against what never ends."""

import contextlib
import signal


def turn(reply, truth=None, key="ground_truth", **user_data):
    """A question and its reply; with a truth in user_data."""
    data = [[key, truth]] if truth is not None else []
    return {
        "messages": [
            {"role": "user", "content": "How many?"},
            {"role": "assistant", "content": reply},
        ],
        "user_data": data + [list(pair) for pair in user_data.items()],
    }


def score(reward, reply, truth=None, **user_data):
    return reward([turn(reply, truth, **user_data)])[0]


@contextlib.contextmanager
def ends():
    """Fails what has not ended after 20 seconds of processor time, where milliseconds suffice: what
    grows faster than its input would not end at all."""

    def stop(*_):
        raise AssertionError("it does not end")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 20)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
