"""Loads the compiled module twinkle._core, with a clear text when that cannot be."""

import importlib
from importlib.metadata import PackageNotFoundError, version

from twinkle.errors import NotAvailableError

_TORCH = "2.11"


def core():
    """The module twinkle._core. NotAvailableError: another torch, or it is not built."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "missing"
    if not torch.startswith(_TORCH + "."):
        raise NotAvailableError(
            f"twinkle: the engine is built for torch {_TORCH}, but torch is {torch}: "
            f"pip install 'torch=={_TORCH}.*'"
        )
    try:
        return importlib.import_module("twinkle._core")
    except ImportError as error:
        raise NotAvailableError(
            f"twinkle: the compiled module twinkle._core cannot be loaded ({error}); "
            "run `make build`, or pip install ."
        ) from error
