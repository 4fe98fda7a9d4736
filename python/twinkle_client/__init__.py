"""Clients of `twinkle serve`: those of the tinker SDK. Twinkle's own ones are not there yet."""

from twinkle.errors import later
from twinkle.module_paths import NEEDS
from twinkle.server.tinker import init_tinker_client, init_tinker_compat_client

__all__ = ["init_tinker_client", "init_tinker_compat_client"]
__getattr__ = later(__name__, {"init_twinkle_client": NEEDS[__name__]})
