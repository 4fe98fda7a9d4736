"""The kernels for CUDA are compiled wherever their compiler is installed, with or without a GPU."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/release"


def nvcc():
    name, prefix = "NVCC:FILEPATH=", BUILD / "CMakeCache.txt"
    lines = prefix.read_text().splitlines() if prefix.exists() else []
    found = [line.removeprefix(name) for line in lines if line.startswith(name)]
    return Path(found[0]) if found and "NOTFOUND" not in found[0] else None


def test_every_cuda_source_is_compiled_where_its_compiler_is():
    if nvcc() is None:
        pytest.skip("no nvcc: scripts/setup.sh cuda installs it where its wheels are")
    sources = {path.stem for path in (ROOT / "twinkle/kernels").glob("*/*.cu")}
    assert sources
    assert {path.stem for path in (BUILD / "cuda").glob("*.o")} == sources


def test_the_installed_compiler_is_the_one_that_the_build_uses():
    wheel = Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    wheel = wheel / "nvidia/cu13/bin/nvcc"
    if not wheel.exists():
        pytest.skip("the compiler's wheels are not installed")
    assert nvcc() is not None
