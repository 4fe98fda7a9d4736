"""Seeds: of every random stream of this process, and derived ones that are equal everywhere.
Scripts know this module as `twinkle.framework_util`."""

import hashlib
import os
import random


def stable_seed(*parts):
    """A seed from the parts, the same in every process: the first 32 bits of their SHA-256."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "little")


def seed_everything(seed=42, full_determinism=False):
    """Seeds `random`, numpy and torch, on all devices. full_determinism: deterministic kernels."""
    random.seed(seed)
    if full_determinism:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        os.environ.setdefault("FLASH_ATTENTION_DETERMINISTIC", "1")
    import numpy as np
    import torch

    np.random.seed(seed)
    torch.manual_seed(seed)
    if full_determinism:
        torch.use_deterministic_algorithms(True, warn_only=True)
