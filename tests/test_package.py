"""`pip install .` and `pip install -e .` in an environment of their own, from a clean copy."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ONE_STEP = """
import sys
import torch
from twinkle.data_format import LoraConfig
from twinkle.model import TransformersModel
model = TransformersModel(model_id=sys.argv[1])
model.add_adapter_to_model("default", LoraConfig(r=4, target_modules="all-linear"))
model.set_optimizer(optimizer_cls="AdamW", lr=1e-2)
batch = [{"input_ids": [5, 6, 7, 8], "labels": [6, 7, 8, -100]}]
first = float(model.forward_backward(inputs=batch)["loss"])
model.clip_grad_and_step()
second = float(model.forward_backward(inputs=batch)["loss"])
assert second < first, (first, second)
"""


def run(*command, **options):
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, **options
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


@pytest.fixture
def environment():
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


HOWS = pytest.mark.parametrize("how", [["."], ["-e", "."]], ids=["copied", "editable"])


@pytest.fixture
def source(tmp_path, tracked):
    """A copy of what git tracks; nothing may be left in it."""
    folder = tmp_path / "source"
    for path in tracked():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, folder / path)
    before = sorted(folder.rglob("*"))
    yield folder
    assert sorted(folder.rglob("*")) == before


def check(venv, source, how, model):
    """It is imported from where it should be, its program runs, and it trains."""
    python, program = venv / "bin/python", venv / "bin/twinkle"
    where = "import twinkle, twinkle.program; print(twinkle.program.__file__)"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    options = {"cwd": venv, "env": {**environment, "PYTHONDONTWRITEBYTECODE": "1"}}
    found = Path(run(python, "-c", where, **options).strip())
    assert found.is_relative_to(source / "python" if how[0] == "-e" else venv)
    assert "train" in run(program, "--help", **options)
    run(python, "-c", ONE_STEP, model, **options)


def needed(file):
    """The shared libraries that the file names."""
    shown = run("readelf", "-d", file)
    return set(re.findall(r"NEEDED.*\[(.*)\]", shown))


SYSTEM = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2"}
TORCH = {"libtorch_cpu.so", "libc10.so", "libgomp.so.1"}
CUDA = {"libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.13"}


def test_what_is_installed_asks_a_machine_for_torch_and_the_systems_libraries_alone():
    """Not for Boost, which few machines have, and not for CUDA's libraries before they are used."""
    stage = ROOT / "build/release/stage/twinkle"
    if not stage.is_dir():
        pytest.skip("nothing was built: make build")
    (module,) = stage.glob("_core*.so")
    for file in (module, stage / "bin/twinkle"):
        assert needed(file) <= SYSTEM | TORCH, file
    library = stage / "libtwinkle_cuda.so"
    has_nvcc = "NVCC:FILEPATH=/" in (ROOT / "build/release/CMakeCache.txt").read_text()
    assert library.exists() == has_nvcc
    if library.exists():
        assert CUDA - {"libcudart.so.13"} <= needed(library) <= SYSTEM | TORCH | CUDA


LOADED = """
import sys
from twinkle.engine import Engine
engine = Engine(sys.argv[1])
assert "torch" not in sys.modules
text = open("/proc/self/maps").read()
print([name for name in ("libtorch_cuda.so", "libcublas", "libtorch_python.so") if name in text])
"""


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="a card is here")
def test_an_engine_on_the_cpu_loads_no_library_of_cuda(environment, tiny_llama_dir):
    del environment["TWINKLE_DEVICE"]
    assert run(sys.executable, "-c", LOADED, tiny_llama_dir, env=environment) == "[]\n"


def test_the_package_works_beside_a_torch_in_another_folder(environment, tmp_path):
    stage, here = ROOT / "build/release/stage/twinkle", Path(sysconfig.get_path("platlib"))
    if not stage.is_dir():
        pytest.skip("nothing was built: make build")
    venv, package = tmp_path / "venv", tmp_path / "elsewhere/twinkle"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    (packages,) = venv.glob("lib/python*/site-packages")
    for entry in here.iterdir():
        if "twinkle" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "python/twinkle", package)
    shutil.copytree(stage, package, dirs_exist_ok=True)
    environment["PYTHONPATH"] = str(package.parent)
    where = "from twinkle.core import core; print(core().__file__)"
    found = run(venv / "bin/python", "-c", where, env=environment)
    assert Path(found.strip()).parent == package
    program = "import sys, twinkle.program as p; sys.argv[1:] = ['--help']; p.main()"
    assert "train" in run(venv / "bin/python", "-c", program, env=environment)


@HOWS
def test_what_was_built_is_packed_and_trains_in_another_environment(
    how, tmp_path, source, tiny_llama_dir
):
    """The wheel's contents, its entry point, and that its files find torch beside them. They are
    those of `make build`, and the dependencies are this environment's; that a wheel compiles by
    itself is shown below."""
    stage, here = ROOT / "build/release/stage", Path(sysconfig.get_path("platlib"))
    if not stage.is_dir() or not (here / "scikit_build_core").is_dir():
        pytest.skip("nothing was built: make build")
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    (packages,) = venv.glob("lib/python*/site-packages")
    for entry in here.iterdir():
        if "twinkle" not in entry.name:  # the package itself, its metadata, its editable finder
            (packages / entry.name).symlink_to(entry)
    define = f"--config-settings=cmake.define.TWINKLE_PREBUILT={stage}"
    pip = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps"]
    run(*pip, "--no-build-isolation", define, *how, cwd=source)
    check(venv, source, how, tiny_llama_dir)


@pytest.mark.parametrize("has_pip, installs", [(True, True), (True, False), (False, False)])
def test_pips_build_takes_nvcc_where_its_wheels_install_and_else_says_that_it_goes_without(
    has_pip, installs, tmp_path, monkeypatch, capfd
):
    pytest.importorskip("scikit_build_core")
    if os.uname().machine != "x86_64":
        pytest.skip("nvcc's wheels are asked for on x86-64")
    python = tmp_path / "python"
    of_pip = f'[ "$3" = --version ] && exit {0 if has_pip else 1}'
    answer = f'{of_pip}\necho "$*" > "$0.log"\nexit {0 if installs else 1}'
    python.write_text(f"#!/bin/bash\n{answer}\n")
    python.chmod(0o755)
    spec = importlib.util.spec_from_file_location("backend", ROOT / "tools/build_backend.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "executable", str(python))
    for hook in (backend.get_requires_for_build_wheel, backend.get_requires_for_build_editable):
        wanted = hook({})
        assert "torch==2.11.*" in wanted
        # Without a pip to ask, as uv builds, they are asked for, and the front end says the rest.
        assert ("nvidia-cuda-nvcc==13.0.*" in wanted) == (installs or not has_pip)
        if not has_pip:
            assert not Path(f"{python}.log").exists() and capfd.readouterr().out == ""
            continue
        said = "twinkle: pip installs no nvcc here: built without the kernels for CUDA\n"
        assert capfd.readouterr().out == ("" if installs else said)
        asked = Path(f"{python}.log").read_text().split()
        assert {"--dry-run", "nvidia-cuda-nvcc==13.0.*", "nvidia-cuda-cccl==13.0.*"} <= set(asked)
    static = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert not [name for name in static if "nvidia" in name]


@pytest.mark.soak
@HOWS
def test_the_package_installs_in_a_clean_environment_and_trains(
    how, tmp_path, source, tiny_llama_dir
):
    """Everything is compiled in pip's own build environment: minutes, and torch comes twice."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", venv)
    # pip's own build environment obeys the same pins; a core for each compiler, no more.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PIP_CONSTRAINT"] = str(ROOT / "requirements/constraints.txt")
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
    run(venv / "bin/python", "-m", "pip", "install", "--quiet", *how, cwd=source, env=environment)
    check(venv, source, how, tiny_llama_dir)
    if os.uname().machine == "x86_64":
        assert list(venv.glob("lib/python*/site-packages/twinkle/libtwinkle_cuda.so"))
    shutil.rmtree(venv)  # gigabytes
