"""Clients of `twinkle serve`: those of the tinker SDK. Twinkle's own ones are not there yet."""

import sys

from twinkle.errors import NotAvailableError, later
from twinkle.server.tinker import init_tinker_client, init_tinker_compat_client

__all__ = ["init_tinker_client", "init_tinker_compat_client"]
_NEEDED = "routes of its own in `twinkle serve` (use the tinker SDK: docs/coming-from-tinker.md)"

__getattr__ = later(__name__, {"init_twinkle_client": _NEEDED})


class _Missing:
    """The last of the finders of modules: says why this package has no others."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        del path, target
        if name.startswith(__name__ + "."):
            raise NotAvailableError(
                f"{name}: this module needs {_NEEDED}, which this version does not have"
            )


sys.meta_path.append(_Missing)
