"""Objects whose ranks live in other processes, and the calls to them."""

from twinkle.remote.decorate import remote_class, remote_function

__all__ = ["remote_class", "remote_function"]
