"""Rollouts of many turns with tools: importing the package says that there are none yet."""

from twinkle.errors import NotAvailableError

raise NotAvailableError(
    "twinkle_agentic: this package needs rollouts of many turns, which this version does not have"
)
