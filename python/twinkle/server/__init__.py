"""Helpers of the server of ModelScope's Twinkle: importing the package says that there are none."""

from twinkle.errors import NotAvailableError

raise NotAvailableError(
    "twinkle.server: this package needs the server of ModelScope's Twinkle, which this version "
    "does not have: start `twinkle serve`, or call twinkle.initialize(mode='http')"
)
