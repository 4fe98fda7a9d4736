"""Facts from launcher and machine: rank, world size, device kind, addresses. Imports no torch; the
compiled core is asked for the device alone."""

import contextlib
import math
import os
import socket

from twinkle.core import core
from twinkle.errors import InvalidError, NotAvailableError, require


def environment_number(name, default, least, most=math.inf, kind=float):
    """The number in an environment variable, or the default. kind: float, or int, of which it must
    be. InvalidError: another text, or a number outside its range."""
    text = os.environ.get(name, "")
    with contextlib.suppress(ValueError):
        value = kind(text) if text else default
        if least <= value <= most:
            return value
    must = "an integer" if kind is int else "a number"
    must += f" of at least {least}" if most == math.inf else f" from {least} to {most}"
    raise InvalidError(f"platform: environment variable {name} is {text!r}, it must be {must}")


def timeout_seconds():
    """How long a rank may be silent: TWINKLE_DIST_TIMEOUT_SECONDS, 60 without. InvalidError: it is
    no number from 1 to 86400."""
    return environment_number("TWINKLE_DIST_TIMEOUT_SECONDS", 60.0, 1, 86_400)


class Platform:
    """One kind of device; `Platform.of('cuda')` finds it by any of its names. Ranks and sizes are
    read from the launcher's environment variables. InvalidError: one of these is no integer."""

    names = ()
    _prefix, _visible, _backend = "cpu", None, "gloo"

    @staticmethod
    def of(device_type):
        """The Platform class of a device name, in any case: cuda, gpu, npu, mps, cpu. InvalidError:
        another name."""
        kinds = {name: kind for kind in (GPU, NPU, MPS, CPU) for name in kind.names}
        name = str(device_type).lower()
        must = f"it must be one of {', '.join(kinds)}"
        require(name in kinds, f"platform: device_type is {device_type!r}, {must}")
        return kinds[name]

    @staticmethod
    def get_platform(device_type=None):
        """The Platform class of a device name; None: of this machine, by what torch can use."""
        if device_type is not None:
            return Platform.of(device_type)
        import torch

        if torch.cuda.is_available():
            return GPU
        if hasattr(torch, "npu") and torch.npu.is_available():
            return NPU
        return MPS if torch.backends.mps.is_available() else CPU

    @staticmethod
    def forced():
        """'cpu', 'cuda' or 'cuda:1': what TWINKLE_DEVICE says, whatever a script asks for; None: it
        is not set. InvalidError: another text in it."""
        text = os.environ.get("TWINKLE_DEVICE") or None
        what = f"platform: environment variable TWINKLE_DEVICE is {text!r}"
        if text is not None and not core().is_device_name(text):
            raise InvalidError(f"{what}, it must be {core().DEVICE_NAMES}")
        return text

    @staticmethod
    def default_device():
        """(the device of an engine for which nobody names one, 'cuda' or 'cpu'; why a card that the
        machine has is not used, or '')."""
        return core().default_device()

    @staticmethod
    def why_not_on(cuda="cuda"):
        """Why the engine cannot run on a CUDA device, 'cuda' or 'cuda:1'; '': it can."""
        return core().why_not_on(cuda)

    @classmethod
    def device_prefix(cls, platform=None):
        """torch's name of the device: 'cuda', 'npu', 'mps' or 'cpu'."""
        return cls._of(platform)._prefix

    @classmethod
    def visible_device_env(cls, platform=None):
        """The environment variable that limits a process to some devices; None: there is none."""
        return cls._of(platform)._visible

    @classmethod
    def device_backend(cls, platform=None):
        """torch.distributed's backend: 'nccl', 'hccl' or 'gloo'."""
        return cls._of(platform)._backend

    @classmethod
    def get_vllm_device_uuid(cls, device_id=0, platform=None):
        """The UUID of a GPU. NotAvailableError: of other devices."""
        if cls._of(platform) is not GPU:
            kind = cls.device_prefix(platform)
            raise NotAvailableError(f"platform: devices of kind {kind} have no UUID, GPUs have")
        import torch

        return f"GPU-{torch.cuda.get_device_properties(device_id).uuid}"

    @classmethod
    def _of(cls, platform):
        """On Platform itself: that of the name, or of this machine; on a subclass: the subclass."""
        return Platform.get_platform(platform) if cls is Platform else cls

    @staticmethod
    def get_rank():
        """The global rank, which the launcher put into RANK."""
        return environment_number("RANK", 0, 0, kind=int)

    @staticmethod
    def get_local_rank():
        """The rank among this machine's processes: LOCAL_RANK, 0 without a launcher."""
        return environment_number("LOCAL_RANK", 0, 0, kind=int)

    @staticmethod
    def get_world_size():
        """Processes on all machines: WORLD_SIZE, 1 without a launcher."""
        return environment_number("WORLD_SIZE", 1, 1, kind=int)

    @staticmethod
    def get_local_world_size():
        """Processes on this machine."""
        return environment_number("LOCAL_WORLD_SIZE", Platform.get_world_size(), 1, kind=int)

    @staticmethod
    def is_master():
        """True on global rank 0."""
        return Platform.get_rank() == 0

    @staticmethod
    def is_local_master():
        """True on local rank 0 of each machine."""
        return Platform.get_local_rank() == 0

    @staticmethod
    def is_last_rank():
        """True on the highest global rank."""
        return Platform.get_rank() == Platform.get_world_size() - 1

    @classmethod
    def get_local_device(cls, idx=None, platform=None):
        """The device string of this process, or of device `idx`: 'cpu', 'cuda:0', ..."""
        prefix = cls.device_prefix(platform)
        if prefix in ("cpu", "mps"):
            return prefix
        return f"{prefix}:{cls.get_local_rank() if idx is None else idx}"


class GPU(Platform):
    """'cuda' and 'gpu': devices that torch calls cuda; nccl connects them."""

    names = ("cuda", "gpu")
    _prefix, _visible, _backend = "cuda", "CUDA_VISIBLE_DEVICES", "nccl"


class NPU(Platform):
    """'npu': devices that torch_npu calls npu; hccl connects them."""

    names = ("npu",)
    _prefix, _visible, _backend = "npu", "ASCEND_RT_VISIBLE_DEVICES", "hccl"


class MPS(Platform):
    """'mps': the one GPU of an Apple machine; gloo connects its processes."""

    names = ("mps",)
    _prefix = "mps"


class CPU(Platform):
    """'cpu': the processors; gloo connects their processes."""

    names = ("cpu",)


def find_free_port(address=""):
    """A TCP port that was free a moment ago on `address` ('' = every interface)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def find_node_ip():
    """The IPv4 address by which other machines reach this one; 127.0.0.1 when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1: nothing is sent, only a route is chosen
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
