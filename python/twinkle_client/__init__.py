"""Clients of `twinkle serve`: Twinkle's own, whose models and samplers have the verbs of the local
ones, and those of the tinker SDK. Data, templates and rewards run here, in the client."""

from twinkle.server.tinker import init_tinker_client, init_tinker_compat_client
from twinkle_client.client import TwinkleClient, init_twinkle_client
from twinkle_client.connection import NoServerError

__all__ = [
    "NoServerError",
    "TwinkleClient",
    "init_tinker_client",
    "init_tinker_compat_client",
    "init_twinkle_client",
]
