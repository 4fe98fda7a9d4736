"""Rollouts of many turns with tools: of this package there are only the rewards, those of
twinkle.reward; whatever else is asked for is refused by name."""

from twinkle.errors import NotAvailableError


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise NotAvailableError(
        f"{__name__}: {name} needs rollouts of many turns, which this version does not have"
    )
