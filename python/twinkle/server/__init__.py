"""The modules of ModelScope's server that clients import; the server itself is `twinkle serve`."""

from twinkle.errors import later

__all__ = []
__getattr__ = later(
    __name__,
    {
        "launch_server": "the server of ModelScope's Twinkle (start `twinkle serve`, or call "
        "twinkle.initialize(mode='http'))"
    },
)
