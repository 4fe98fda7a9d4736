"""Helpers of upstream's server: importing the package says that there are none."""

from twinkle.errors import NotAvailableError

raise NotAvailableError(
    "twinkle.server: this package needs upstream's server, which this version does not have: start "
    "`twinkle serve`, or call twinkle.initialize(mode='http')"
)
