"""Twinkle's own clients of `twinkle serve`: importing the package says that there are none yet."""

from twinkle.errors import NotAvailableError

raise NotAvailableError(
    "twinkle_client: this package needs routes of its own in `twinkle serve`, which this version "
    "does not have: use the tinker SDK (docs/coming-from-tinker.md), or the classes of `twinkle`, "
    "which work in this process"
)
