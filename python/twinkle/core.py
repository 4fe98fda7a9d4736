"""Loads the compiled module twinkle._core, with a clear text when that cannot be."""

import importlib
import sys
from importlib.metadata import PackageNotFoundError, version

from twinkle.errors import NotAvailableError

_TORCH = "2.11"
# The options that TransformersModel and the samplers set themselves.
_SAID_OTHERWISE = ("model", "mixed_precision", "device", "value_head")


def _load():
    try:
        return importlib.import_module("twinkle._core")
    except ModuleNotFoundError:
        raise
    except ImportError:
        # The module looks for torch in the folder that it is installed in. Where torch is in
        # another, its libraries must be there before; importing it always would cost memory.
        import torch  # noqa: F401

        return importlib.import_module("twinkle._core")


def core():
    """The module twinkle._core. NotAvailableError: another torch, or it is not built."""
    if loaded := sys.modules.get("twinkle._core"):
        return loaded
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
        return _load()
    except ModuleNotFoundError as error:
        raise NotAvailableError(
            f"twinkle: the compiled module twinkle._core is not there ({error}): "
            "run `make build` in a checkout, or `pip install .`"
        ) from error
    except ImportError as error:
        raise NotAvailableError(
            f"twinkle: the compiled module twinkle._core does not load ({error}): torch and "
            "twinkle must be for this machine and Python; install both again in one environment"
        ) from error


def option_names():
    """Names of the options that a model or a sampler passes on to its engine."""
    declared = [option["name"] for option in core().engine_options()]
    return [name for name in declared if name not in _SAID_OTHERWISE]
