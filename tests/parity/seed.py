"""The seed of the models of the parity tests. Needs no package: the summary prints it."""

import os

SEED = int(os.environ.get("TWINKLE_PARITY_SEED", "20260301"))
