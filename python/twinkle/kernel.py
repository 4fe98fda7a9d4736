"""kernelize() and its words: the engine has kernels of its own, so the call changes nothing."""

from collections.abc import Mapping

from twinkle import checks
from twinkle.errors import NotAvailableError
from twinkle.logger import get_logger


class KernelChoice:
    """Names of backends ('liger', 'npu') or replacements, in the order in which they are tried."""

    def __init__(self, *choices):
        self.choices = choices


DEFAULT_KERNEL_CONFIG = {}  # a class, or the dotted path of a module: KernelChoice


def kernelize(model, mapping=None):
    """Returns `model`. mapping: None, or a dict as DEFAULT_KERNEL_CONFIG; one that asks for other
    kernels than the engine's is met with a warning. InvalidError: no dict."""
    if mapping is not None and not isinstance(mapping, Mapping):
        checks.refuse("kernel: mapping", mapping, "a dict of classes or paths")
    if mapping:
        _warn("mapping")
    return model


def npu_builtin(model=None):
    """{}: kernels of NPUs have no effect, which a warning says."""
    return _warn("npu_builtin")


def liger_builtin(model=None):
    """{}: kernels of Liger have no effect, which a warning says."""
    return _warn("liger_builtin")


def _warn(what):
    get_logger().warning_once(f"kernel: {what} has no effect: the engine has its own kernels")
    return {}


def hub(repository, **kwargs):
    """NotAvailableError, always: layers of the kernels hub are code for another engine."""
    raise NotAvailableError(
        f"kernel: {repository!r} is a layer of the kernels hub, which this engine cannot use; "
        "leave it out"
    )
