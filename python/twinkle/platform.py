"""What the launcher and the machine say: rank, world size, device kind, addresses. No torch."""

import os
import socket

from twinkle.errors import InvalidError


def _environment_int(name, default):
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise InvalidError(
            f"platform: environment variable {name} is {text!r}, it must be an integer"
        ) from error


class Platform:
    """One kind of device; `Platform.of('cuda')` finds it by any of its names."""

    names = ()
    device_prefix = "cpu"
    visible_device_env = None
    device_backend = "gloo"

    @staticmethod
    def of(device_type):
        """The Platform class of a device name, in any case: cuda, gpu, npu, mps, cpu."""
        for platform in (GPU, NPU, MPS, CPU):
            if str(device_type).lower() in platform.names:
                return platform
        raise InvalidError(
            f"platform: device_type is {device_type!r}, it must be one of cuda, gpu, npu, mps, cpu"
        )

    @staticmethod
    def get_rank():
        return _environment_int("RANK", 0)

    @staticmethod
    def get_local_rank():
        return _environment_int("LOCAL_RANK", 0)

    @staticmethod
    def get_world_size():
        return _environment_int("WORLD_SIZE", 1)

    @staticmethod
    def is_master():
        return Platform.get_rank() == 0

    @classmethod
    def get_local_device(cls):
        """The device string of this process: 'cpu', 'cuda:0', ..."""
        if cls.device_prefix in ("cpu", "mps"):
            return cls.device_prefix
        return f"{cls.device_prefix}:{cls.get_local_rank()}"


class GPU(Platform):
    names = ("cuda", "gpu")
    device_prefix = "cuda"
    visible_device_env = "CUDA_VISIBLE_DEVICES"
    device_backend = "nccl"


class NPU(Platform):
    names = ("npu",)
    device_prefix = "npu"
    visible_device_env = "ASCEND_RT_VISIBLE_DEVICES"
    device_backend = "hccl"


class MPS(Platform):
    names = ("mps",)
    device_prefix = "mps"


class CPU(Platform):
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
