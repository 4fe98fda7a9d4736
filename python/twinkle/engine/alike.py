"""Facts that the ranks of an engine must share: of other sizes, they would end each other."""

import json
from importlib.metadata import version

from twinkle import checks
from twinkle.core import core
from twinkle.errors import require
from twinkle.version import __version__


def facts(path, given, mesh):
    """{name: what must be the same on every rank} of an engine of the model at `path`, with the
    arguments `given`, on a mesh of several ranks."""
    texts = core().digest_of_texts(path)
    found = json.loads(core().arithmetic(str(given["mixed_precision"]), given["device"], True))
    axes = {n: s for n, s in zip(mesh.mesh_dim_names, mesh.mesh.shape, strict=True) if s > 1}
    return {
        "device_mesh": axes,
        # Each rank may have its own folder to park in.
        **{name: value for name, value in given.items() if name != "park_directory"},
        "a digest of the model's config.json, indexes and weights": core().digest_of_files(path),
        "a digest of the model's generation_config.json and tokenizer": texts,
        # The build, and what the bits of results depend on.
        "twinkle's version": __version__,
        "torch's version": version("torch"),  # found has that of the build
        "the kind of matrix products (bf16_products)": found["products"],
        "the instructions of the CPU that torch uses": found["instructions"],
    }


def require_alike(of_ranks):
    """InvalidError: a rank's facts are not those of rank 0; None has no facts."""
    first = of_ranks[0]
    for rank, other in enumerate(of_ranks):
        for name in [] if first is None else first | other:
            mine, its = first.get(name), other.get(name)
            require(
                mine == its,
                f"engine: {name} is {checks.short(mine)} on rank 0 and {checks.short(its)} on rank "
                f"{rank}: all ranks must make an engine with the same arguments, of the same files",
            )
