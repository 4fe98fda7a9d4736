"""What the ranks of an engine must have alike: of other sizes, they would end each other."""

import hashlib
from pathlib import Path

from twinkle import checks
from twinkle.errors import require

_WEIGHTS = (".safetensors", ".gguf")
_SAMPLE = 4096  # bytes that are compared of a file's beginning, middle and end
_OWN = ("park_directory",)  # each rank may have its own


def facts(path, given, mesh):
    """{name: what must be the same on every rank} of an engine of the model at `path`, with the
    arguments `given`, on a mesh of several ranks."""
    alike = {name: value for name, value in given.items() if name not in _OWN}
    axes = {n: s for n, s in zip(mesh.mesh_dim_names, mesh.mesh.shape, strict=True) if s > 1}
    return {
        "device_mesh": axes,
        **alike,
        "a digest of the model's config.json and weights": _digest(Path(path)),
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


def _digest(path):
    """Of a model's folder, or of its one file: sizes and samples, since to read all takes long."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    out = hashlib.sha256()
    for file in files:
        if file.name != "config.json" and file.suffix not in _WEIGHTS:
            continue
        size = file.stat().st_size
        out.update(f"{size}\n".encode())
        with file.open("rb") as opened:
            for begin in (0, size // 2, max(0, size - _SAMPLE)):
                opened.seek(begin)
                out.update(opened.read(_SAMPLE))
    return out.hexdigest()[:16]
