"""The device that a worker measures on: when its work has ended, and how much of it was taken."""

from foreign import Meter
from worker import peak_rss_mib


class Device:
    """name: 'cpu' or 'cuda'. torch is loaded for the second alone: it takes memory, which is
    measured, too."""

    def __init__(self, name):
        self.name = name
        if name == "cpu":
            self.wait, self.peak_mib = (lambda: None), peak_rss_mib
        else:
            import torch

            torch.cuda.init()  # or it knows no peak of an engine that began without it
            self.wait = torch.cuda.synchronize
            self.peak_mib = lambda: torch.cuda.max_memory_reserved() / 2**20

    def meter(self):
        """A Meter whose block begins and ends with nothing left to do on the device."""
        return Meter(self.wait)


def name_of_gpu():
    """torch's name of the GPU. SystemExit: there is none."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit(
            "bench: --device is 'cuda', torch finds no CUDA device: look at nvidia-smi, at the "
            "driver's version and at CUDA_VISIBLE_DEVICES; --rehearse alone runs the same code on "
            "the CPU with tiny models, and keeps no figure"
        )
    return torch.cuda.get_device_name()
