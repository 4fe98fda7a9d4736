"""twinkle.engine: operations of many tenants on one copy of a model, each returning a Future.

Every tenant has its own adapter, gradients, optimizer and random streams, and gets, bit for bit,
what it would get alone. Operations of one tenant run in the order of their submission; those of
different tenants share batches. Any thread may submit. docs/engine.md shows its use.
"""

from twinkle.engine.engine import Engine
from twinkle.engine.future import Future, Result
from twinkle.engine.stream import Token, TokenStream
from twinkle.engine.tenant import Tenant

__all__ = ["Engine", "Future", "Result", "Tenant", "Token", "TokenStream"]
