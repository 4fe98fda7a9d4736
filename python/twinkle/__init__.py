"""Twinkle: training large language models with the loop in your hands.

Names are imported when they are first used: `import twinkle` loads neither torch nor the engine.
"""

import importlib
import importlib.metadata

from twinkle import module_paths
from twinkle.errors import (
    BusyError,
    ConflictError,
    InternalError,
    InvalidError,
    NotAvailableError,
    NotFoundError,
    TwinkleError,
    later,
)
from twinkle.logger import get_logger

# name: the module that defines it
_EXPORTS = {
    "initialize": "infra",
    "DeviceGroup": "infra",
    "get_device_placement": "placement",
    "is_master": "infra",
    "DeviceMesh": "device_mesh",
    "get_logger": "logger",
    "Plugin": "plugin",
    "construct_class": "plugin",
    "exists": "plugin",
    "requires": "plugin",
    "trust_remote_code": "plugin",
    "check_unsafe": "plugin",
    "Platform": "platform",
    "GPU": "platform",
    "NPU": "platform",
    "MPS": "platform",
    "CPU": "platform",
    "find_free_port": "platform",
    "find_node_ip": "platform",
    "LoraConfig": "data_format",
    "SamplingParams": "data_format",
    "Dataset": "dataset",
    "DatasetMeta": "dataset",
    "DataLoader": "dataloader",
    "Engine": "engine",
    "Template": "template",
    "TransformersModel": "model",
    "TorchSampler": "sampler",
    "init_tinker_client": "server.tinker",
    "remote_class": "remote.decorate",
    "remote_function": "remote.decorate",
    "__version__": "version",
    "__release_datetime__": "version",
}

# name: the module that it is
_MODULES = {"framework_util": "seeding", "torch_util": "tensors"}

# Packages and modules that `import twinkle` alone makes reachable: twinkle.loss.GRPOLoss.
_PACKAGES = (
    "advantage", "checkpoint_engine", "data_format", "dataloader", "dataset", "engine", "hub",
    "kernel", "loss", "metric", "model", "module", "notifier", "patch", "preprocessor",
    "processor", "report", "reward", "sampler", "server", "template", "utils",
)  # fmt: skip

# name of the specification: what it needs, which this version does not have yet
_LATER = {"init_twinkle_client": "Twinkle's own client of `twinkle serve` (the tinker SDK is one)"}

__all__ = [
    "BusyError",
    "ConflictError",
    "InternalError",
    "InvalidError",
    "NotAvailableError",
    "NotFoundError",
    "TwinkleError",
]
__all__ += list(_EXPORTS)
__all__ += list(_MODULES)


def __getattr__(name):
    if name in _EXPORTS:
        value = getattr(importlib.import_module(f"twinkle.{_EXPORTS[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"twinkle.{_MODULES[name]}")
    elif name in _PACKAGES:
        value = importlib.import_module(f"twinkle.{name}")
    else:
        value = later("twinkle", _LATER)(name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)


def _warn_of_namesake():
    """Logs a warning where ModelScope's Twinkle is installed, too."""
    try:
        other = importlib.metadata.version("twinkle-kit")
    except importlib.metadata.PackageNotFoundError:
        return
    get_logger().warning(
        f"twinkle: the package twinkle-kit {other} is installed here, too, and both are imported "
        f"as 'twinkle', now from {__path__[0]}: install each in an environment of its own"
    )


_warn_of_namesake()
