"""Torch: short questions to torch about this machine's devices. Scripts know this module as
`twinkle.utils.framework`."""

import torch

from twinkle import seeding
from twinkle.platform import Platform


class Torch:
    """Questions about torch's devices, and calls that do nothing where there is only the CPU."""

    seed_everything = staticmethod(seeding.seed_everything)
    is_gpu_available = staticmethod(torch.cuda.is_available)
    empty_cache = staticmethod(torch.cuda.empty_cache)  # without CUDA nothing is done

    @staticmethod
    def is_torch_available():
        """True: Twinkle needs torch."""
        return True

    @staticmethod
    def is_npu_available():
        """True where torch can use an NPU, by torch_npu."""
        return hasattr(torch, "npu") and torch.npu.is_available()

    @staticmethod
    def get_device(local_rank=None):
        """The device of this process, or of a local rank: 'cpu', 'cuda:0', ..."""
        return Platform.get_platform().get_local_device(local_rank)

    @staticmethod
    def set_device(local_rank=None):
        """Makes it torch's current CUDA device."""
        if torch.cuda.is_available():
            torch.cuda.set_device(Torch.get_device(local_rank))

    @staticmethod
    def synchronize():
        """Waits for the work on the current CUDA device."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
