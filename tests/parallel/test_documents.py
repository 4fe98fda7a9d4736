"""The torchrun scripts of the source documents and of docs/parallel.md over several processes: the
bits of one."""

import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from parallel.forks import environment
from parallel.processes import alone, printed_by, sha256, together
from seed_scripts import BEST_PRACTICES, SINGLE_GPU, TORCHRUN, with_sizes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/parallel.md"
SIZES = {
    "range(100)": "range(20)",
    "range(1000)": "range(80)",
    "step % 20": "step % 2",
    "step % 40": "step % 4",
}
OF_A_REAL_MODEL = SIZES | {"range(100)": "range(8)", "range(1000)": "range(40)"}


def test_the_page_begins_with_the_commands_that_show_it():
    """Both of the Makefile: on one process, and in a cluster."""
    lines = PAGE.read_text().splitlines()
    assert lines[0].startswith("# ") and lines[2] == "```"
    commands = [line.partition("#")[0].strip() for line in lines[3:5]]
    assert commands == ["make demo", "make demo-ray"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{c.removeprefix('make ')}: ", makefile, re.M) for c in commands)


def places(model, data_dir):
    data = data_dir / "self_cognition.jsonl"
    return {
        "TWINKLE_MODEL_ID_ALIASES": f"ms://Qwen/Qwen3.5-4B={model}",
        "TWINKLE_DATASET_ID_ALIASES": f"ms://swift/self-cognition={data}",
        "imports": ("peft",),
    }


def fsdp2(file, dp, fsdp, sizes):
    """The document's script in a file, for these ranks."""
    mesh = {"fsdp_size=4, dp_size=2": f"fsdp_size={fsdp}, dp_size={dp}"}
    file.write_text(with_sizes(BEST_PRACTICES, sizes | mesh))
    return file


def alone_in(folder, where, sizes):
    """(the folder in which one process has run the script, and saved, what it has told)."""
    one = folder / "one"
    one.mkdir()
    return one, alone("noted.py", fsdp2(folder / "one.py", 1, 1, sizes), folder=one, **where)


def count(told, name):
    """How often the script has called this."""
    return sum(called == name for called, _ in told)


def check(folder, dp, fsdp, where, of_one, sizes):
    """of_one: what alone_in gives."""
    one, told = of_one
    several = folder / "several"
    several.mkdir()
    script, size = fsdp2(folder / "several.py", dp, fsdp, sizes), dp * fsdp
    assert together(size, "noted.py", script, folder=several, **where) == [told] * size
    saved = sorted(each.name for each in (one / "output").iterdir())
    assert saved == sorted(each.name for each in (several / "output").iterdir())
    assert {"checkpoint-4", "last-checkpoint"} <= set(saved)
    for name in saved:
        assert sha256(several / "output" / name) == sha256(one / "output" / name)


@pytest.fixture(scope="module")
def of_one(tiny_llama_dir, data_dir, tmp_path_factory):
    where = places(tiny_llama_dir, data_dir)
    one, told = alone_in(tmp_path_factory.mktemp("one"), where, SIZES)
    assert count(told, "forward_backward") == 10
    assert count(told, "calculate_loss") == 6  # two evaluations
    return one, told


@pytest.mark.parametrize(("dp", "fsdp"), [(2, 2), pytest.param(2, 1, marks=pytest.mark.soak)])
def test_the_documents_script_on_a_tiny_model(dp, fsdp, of_one, tiny_llama_dir, data_dir, tmp_path):
    check(tmp_path, dp, fsdp, places(tiny_llama_dir, data_dir), of_one, SIZES)


@pytest.mark.soak  # CI has the tiny model here, and SmolLM2 on two processes in parity/test_ddp.py
def test_the_documents_script_on_a_real_model(smollm2_dir, data_dir, tmp_path):
    where = places(smollm2_dir, data_dir)
    of_one = alone_in(tmp_path, where, OF_A_REAL_MODEL)
    assert count(of_one[1], "forward_backward") == 5 and count(of_one[1], "calculate_loss") == 1
    check(tmp_path, 2, 1, where, of_one, OF_A_REAL_MODEL)


def chats_in(file, count):
    """A data set of so many chats, in a file."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Who are you, {i}?"},
                {"role": "assistant", "content": f"I am Nova the {i}th, of the Sky Team."},
            ]
        }
        for i in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_documents_torchrun_mode_trains_as_its_single_gpu(tiny_llama_dir, tmp_path):
    chats = chats_in(tmp_path / "chats.jsonl", 24)
    where = {
        "TWINKLE_MODEL_ID_ALIASES": f"ms://Qwen/Qwen3.5-4B={tiny_llama_dir}",
        "TWINKLE_DATASET_ID_ALIASES": f"ms://swift/self-cognition={chats}",
    }
    imports, code = SINGLE_GPU.split("def train():\n")
    code = code.partition("\nif __name__")[0]
    sizes = {"fsdp_size=4, dp_size=2": "fsdp_size=2, dp_size=2", "    ...\n": code}
    one, several = tmp_path / "one.py", tmp_path / "several.py"
    one.write_text(SINGLE_GPU)
    several.write_text(imports + with_sizes(TORCHRUN, sizes))
    told = alone("noted.py", one, folder=tmp_path, **where)
    assert [name for name, _ in told] == ["forward_backward", "clip_grad_and_step"] * 3
    assert told[1][1] > 0  # a norm: it learns
    for of_rank in together(4, "noted.py", several, folder=tmp_path, **where):
        assert [name for name, _ in of_rank] == [name for name, _ in told]
        for (_, got), (_, want) in zip(of_rank, told, strict=True):
            assert got == pytest.approx(want, rel=1e-4)


def by_python(folder, where):
    """All that train.py in the folder prints."""
    return printed_by(folder / "train.py", folder=folder, **where)


def by_torchrun(folder, where):
    """The same, by the page's command."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += ["--nproc_per_node=2", "train.py"]
    done = subprocess.run(
        start, env=environment(**where), cwd=folder, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_the_script_of_the_page_prints_on_two_processes_what_it_prints_on_one(
    tiny_llama_dir, tmp_path
):
    (script,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "DataLoader" in code
    )
    printed = {}
    for size, run in ((1, by_python), (2, by_torchrun)):
        folder = tmp_path / str(size)
        folder.mkdir()
        chats = [
            {
                "messages": [
                    {"role": "user", "content": asked},
                    {"role": "assistant", "content": told},
                ]
            }
            for asked, told in (
                ("Who are you?", "I am Nova."),
                ("And who made you?", "The Sky Team."),
            )
        ]
        (folder / "my.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
        (folder / "train.py").write_text(script.replace("dp_size=2", f"dp_size={size}"))
        printed[size] = run(folder, {"TWINKLE_MODEL_ID_ALIASES": f"smollm2={tiny_llama_dir}"})
    assert len(printed[1].splitlines()) == 5 and printed[1] == printed[2]
    saved = [tmp_path / size / "outputs/parallel/adapter" for size in ("1", "2")]
    assert sha256(saved[0]) == sha256(saved[1])


def test_every_test_that_the_page_names_is_there():
    page = PAGE.read_text()
    sources = [file.read_text() for file in (ROOT / "twinkle").rglob("*_test.cpp")]
    defined = [
        ".".join(name)
        for text in sources
        for name in re.findall(r"^TEST\w*\((\w+), (\w+)\)", text, re.M)
    ]
    named = re.findall(r"gtest_filter='([^']+)'", page)
    named += re.findall(r"`([A-Z]\w+\.[A-Z]\w+)`", page)
    assert len(named) > 10
    for pattern in named:
        assert fnmatch.filter(defined, pattern), pattern
    for path in re.findall(r"`(tests/[\w/]+\.py)`", page):
        assert (ROOT / path).is_file(), path
