"""Fetches published chat templates into .venv/templates/PACKAGE, for the test that renders them.

The packages of requirements/test-templates-alone.txt are downloaded, not installed, and not kept.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv/templates"
PACKAGES = {
    "trl": "trl/chat_templates/",
    "axolotl": "axolotl/utils/chat_templates/templates/",
    "llama_cpp_python": "vendor/llama.cpp/models/templates/",
}


def download(folder):
    options = ["--disable-pip-version-check", "--no-deps", "--require-hashes"]
    source = [
        "--no-binary",
        "llama-cpp-python",
        "--no-build-isolation",
    ]  # its wheel has no templates
    wanted = ["-d", folder, "-r", ROOT / "requirements/test-templates-alone.txt"]
    command = [sys.executable, "-m", "pip", "download", *options, *source, *wanted]
    return subprocess.run(command, check=False).returncode == 0


def files_of(archive):
    """(name, bytes) of each template in a wheel or source archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                if name.endswith(".jinja"):
                    yield name, opened.read(name)
        return
    with tarfile.open(archive) as opened:
        for member in opened:
            if member.name.endswith(".jinja") and member.isfile():
                yield member.name, opened.extractfile(member).read()


def main():
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as scratch:
        if not download(scratch):
            return 1
        found = Path(scratch, "templates")
        for package, inside in PACKAGES.items():
            target = found / package
            target.mkdir(parents=True)
            (archive,) = Path(scratch).glob(f"{package}-*")
            for name, text in files_of(archive):
                if inside in name:
                    (target / Path(name).name).write_bytes(text)
        shutil.rmtree(FOLDER, ignore_errors=True)
        found.rename(FOLDER)
    return 0


sys.exit(main())
