"""The modules of ModelScope's server that clients import; the server itself is `twinkle serve`."""

import sys

from twinkle.errors import later
from twinkle.server import datum

__all__ = []
sys.modules[f"{__name__}.common"] = datum  # by the path that scripts import it from

__getattr__ = later(
    __name__,
    {
        "launch_server": "the server of ModelScope's Twinkle (start `twinkle serve`, or call "
        "twinkle.initialize(mode='http'))"
    },
)
