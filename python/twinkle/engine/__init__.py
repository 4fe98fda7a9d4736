"""twinkle.engine: operations of many tenants on one copy of a model, each returning a Future.

Every tenant has its own adapter, gradients, optimizer and random streams, and gets, bit for bit,
what it would get alone. Operations of one tenant run in the order of their submission; those of
different tenants share batches. Any thread may submit. docs/engine.md shows its use.

Names are imported when they are first used: processes of a mesh meet through twinkle.engine.ranks
before there is an engine.
"""

import importlib

# name: the module that defines it
_EXPORTS = {
    "Engine": "engine",
    "Future": "future",
    "Result": "future",
    "Tenant": "tenant",
    "Token": "stream",
    "TokenStream": "stream",
}

__all__ = list(_EXPORTS)


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(f"module 'twinkle.engine' has no attribute {name!r}")
    return getattr(importlib.import_module(f"twinkle.engine.{_EXPORTS[name]}"), name)
