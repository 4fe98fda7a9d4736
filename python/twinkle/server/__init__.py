"""Helpers of the HTTP service: importing the package says that there are none yet."""

from twinkle.errors import NotAvailableError

raise NotAvailableError(
    "twinkle.server: this package needs the HTTP service, which this version does not have"
)
