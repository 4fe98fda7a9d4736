"""scikit-build-core's build backend. It also asks for nvcc's wheels, where pip says that they
install: a wheel without kernels can use no GPU, but a machine without nvcc builds all the rest."""

import os
import platform
import subprocess
import sys
from pathlib import Path

from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403

NVCC = Path(__file__).resolve().parent.parent / "requirements/cuda.txt"


def nvcc():
    """Its wheels, or [] where they do not install, which is said."""
    wheels = [line for line in NVCC.read_text().splitlines() if not line.startswith("#")]
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):
        # A build environment hides the pip that made it behind PYTHONPATH.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        asked = [*pip, "--dry-run", "--ignore-installed", *wheels]
        has_pip = subprocess.run(
            [sys.executable, "-m", "pip", "--version"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if has_pip.returncode != 0:  # another front end, which installs them or says why not
            return wheels
        if subprocess.run(asked, env=environment, stdout=subprocess.DEVNULL).returncode == 0:
            return wheels
    print("twinkle: pip installs no nvcc here: built without the kernels for CUDA", flush=True)
    return []


# torch comes this way, too, so that it is laid next to nvcc.
def get_requires_for_build_wheel(config_settings=None):
    return [*build.get_requires_for_build_wheel(config_settings), "torch==2.11.*", *nvcc()]


def get_requires_for_build_editable(config_settings=None):
    return [*build.get_requires_for_build_editable(config_settings), "torch==2.11.*", *nvcc()]
