"""Clients of the HTTP service: importing the package says that there are none yet."""

from twinkle.errors import NotAvailableError

raise NotAvailableError(
    "twinkle_client: this package needs the HTTP service, which this version does not have: "
    "the classes of `twinkle` work in this process"
)
