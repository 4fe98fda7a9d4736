"""Scripts of the tinker SDK, as ModelScope's Twinkle has them."""

import sys

from twinkle.server import datum
from twinkle.server.tinker.client import init_tinker_client, init_tinker_compat_client

__all__ = ["init_tinker_client", "init_tinker_compat_client"]
sys.modules[f"{__name__}.common"] = datum  # by the path that scripts import it from
