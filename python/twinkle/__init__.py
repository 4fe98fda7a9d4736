"""Twinkle: training large language models with the loop in your hands.

Names are imported when they are first used: `import twinkle` loads neither torch nor the engine.
"""

import importlib
import importlib.metadata

from twinkle import module_paths
from twinkle.logger import get_logger

# module: the names that it defines
_NAMES = {
    "data_format": "LoraConfig SamplingParams",
    "dataloader": "DataLoader",
    "dataset": "Dataset DatasetMeta",
    "device_mesh": "DeviceMesh",
    "engine": "Engine",
    "errors": "BusyError ConflictError InternalError InvalidError NotAvailableError NotFoundError "
    "TwinkleError",
    "infra": "DeviceGroup initialize is_master",
    "logger": "get_logger",
    "model": "TransformersModel",
    "placement": "get_device_placement",
    "platform": "CPU GPU MPS NPU Platform find_free_port find_node_ip",
    "plugin": "Plugin check_unsafe construct_class exists requires trust_remote_code",
    "remote.decorate": "remote_class remote_function",
    "sampler": "TorchSampler",
    "server.tinker": "init_tinker_client",
    "template": "Template",
    "version": "__release_datetime__ __version__",
}
_EXPORTS = {name: module for module, names in _NAMES.items() for name in names.split()}

# name: the module that it is; all are reached by `import twinkle` alone, as twinkle.loss.GRPOLoss
_ALIASES = {"framework_util": "seeding", "torch_util": "tensors"}
_MODULES = _ALIASES | {
    name: name
    for name in "advantage checkpoint_engine data_format dataloader dataset engine hub kernel loss "
    "metric model module notifier patch preprocessor processor report reward sampler server "
    "template utils".split()
}

__all__ = list(_EXPORTS)
__all__ += ["init_twinkle_client"]  # twinkle_client has it
__all__ += list(_ALIASES)


def __getattr__(name):
    if name in _EXPORTS:
        value = getattr(importlib.import_module(f"twinkle.{_EXPORTS[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"twinkle.{_MODULES[name]}")
    elif name == "init_twinkle_client":
        value = getattr(importlib.import_module("twinkle_client"), name)
    else:
        raise AttributeError(f"module 'twinkle' has no attribute {name!r}")
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
