"""examples/finetune.cpp and examples/finetune.py are one program in two languages."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "build/release/example_finetune"


def losses(command):
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    return re.findall(r"^step \d+ loss (\S+)", run.stdout, flags=re.MULTILINE)


def test_the_first_losses_of_the_cpp_example_are_those_of_the_python_script(tmp_path):
    pytest.importorskip("twinkle.core")
    if not PROGRAM.exists():
        pytest.skip("build/release/example_finetune is not built: run make build")
    import twinkle.hub

    model = twinkle.hub.get("smollm2")
    data = str(ROOT / "examples/data/self_cognition.jsonl")
    script = str(ROOT / "examples/finetune.py")
    python = losses([sys.executable, script, model, data, str(tmp_path / "python"), "3"])
    cpp = losses([str(PROGRAM), model, data, str(tmp_path / "cpp"), "3"])
    assert len(python) == 3
    assert cpp == python


def test_the_cpp_examples_default_seed_is_that_of_the_python_scripts_adapter():
    from twinkle.infra import current_run
    from twinkle.seeding import stable_seed

    seed = stable_seed(current_run().seed, "adapter", "default")
    assert f'argument(5, "{seed}")' in (ROOT / "examples/finetune.cpp").read_text()


def test_the_cpp_example_has_less_than_80_lines():
    assert len((ROOT / "examples/finetune.cpp").read_text().splitlines()) < 80
