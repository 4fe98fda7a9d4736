"""Scripts of the tinker SDK, as ModelScope's Twinkle has them."""

from twinkle.server.tinker.client import init_tinker_client, init_tinker_compat_client

__all__ = ["init_tinker_client", "init_tinker_compat_client"]
