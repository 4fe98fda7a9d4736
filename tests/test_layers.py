"""The house rules that a program can check: who includes whom, names, the README's file tree."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run_layers(root, rules):
    return subprocess.run(
        [sys.executable, ROOT / "tools/layers.py", root, rules], capture_output=True, text=True
    )


def test_no_folder_includes_one_that_its_rule_does_not_name():
    result = run_layers(ROOT / "twinkle", ROOT / "tools/layers.txt")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("suffix", ["h", "cpp", "cu"])
def test_the_include_rule_finds_a_breach(tmp_path, suffix):
    source = tmp_path / "twinkle/low" / f"a.{suffix}"
    source.parent.mkdir(parents=True)
    source.write_text('#include "twinkle/high/b.h"\n')
    (tmp_path / "rules").write_text("low:\nhigh: low\n")
    result = run_layers(tmp_path / "twinkle", tmp_path / "rules")
    assert result.returncode == 1
    assert f"a.{suffix}:1: low may not include high" in result.stdout


@pytest.mark.parametrize(
    ("include", "complaint"),
    [
        ("<twinkle/high/b.h>", "low may not include high"),
        ('"twinkle/high/inner/b.h"', "low may not include high"),
        ('"../high/b.h"', "../high/b.h is named by .., not by its full path"),
        ("<twinkle/low/../high/b.h>", "twinkle/low/../high/b.h is named by .."),
        ('"sub/../../high/b.h"', "sub/../../high/b.h is named by .."),
    ],
)
def test_the_include_rule_finds_a_breach_however_it_is_written(tmp_path, include, complaint):
    source = tmp_path / "twinkle/low/a.cpp"
    source.parent.mkdir(parents=True)
    (tmp_path / "rules").write_text("low:\nhigh: low\n")
    for word in ("#include ", "# include", "  #  include  "):
        source.write_text(f"#include <vector>\n{word}{include}\n")
        result = run_layers(tmp_path / "twinkle", tmp_path / "rules")
        assert result.returncode == 1
        assert f"a.cpp:2: {complaint}" in result.stdout


def breaches(tmp_path, name):
    """Complaints about middle/NAME, which includes a folder below, and one above."""
    source = tmp_path / "twinkle/middle" / name
    source.parent.mkdir(parents=True)
    source.write_text('#include "twinkle/low/b.h"\n#include "twinkle/high/b.h"\n')
    (tmp_path / "rules").write_text("low:\nmiddle:\nhigh: low middle\n")
    result = run_layers(tmp_path / "twinkle", tmp_path / "rules")
    assert result.returncode == 1
    return [line.partition(f"{name}:")[2] for line in result.stdout.splitlines()]


@pytest.mark.parametrize("name", ["a_test.cpp", "a_for_test.h", "a_test.h"])
def test_tests_may_include_what_lies_below_them_and_nothing_above(tmp_path, name):
    assert breaches(tmp_path, name) == ["2: middle may not include high"]


@pytest.mark.parametrize("name", ["a.cpp", "test.h", "latest.h"])
def test_what_is_no_test_may_include_only_what_its_rule_names(tmp_path, name):
    assert breaches(tmp_path, name) == [
        "1: middle may not include low",
        "2: middle may not include high",
    ]


def test_the_include_rule_refuses_a_cycle_in_its_own_rules(tmp_path):
    (tmp_path / "twinkle").mkdir()
    (tmp_path / "rules").write_text("low: high\nhigh: low\n")
    result = run_layers(tmp_path / "twinkle", tmp_path / "rules")
    assert result.returncode == 1
    assert "low names high, which is not below it" in result.stdout


PARTS = "house:\nhouse/low:\nhouse/high: low\n"


@pytest.mark.parametrize(
    ("name", "includes", "complaints"),
    [
        ("low/a.h", "high", ["house/low may not include house/high"]),
        ("low/a_test.cpp", "high", []),
        ("low/a.h", "free", []),
        ("high/a.cpp", "low", []),
        ("free/a.cpp", "high", []),
    ],
)
def test_parts_of_a_folder_have_rules_of_their_own(tmp_path, name, includes, complaints):
    source = tmp_path / "twinkle/house" / name
    source.parent.mkdir(parents=True)
    source.write_text(f'#include "twinkle/house/b.h"\n#include "twinkle/house/{includes}/b.h"\n')
    (tmp_path / "rules").write_text(PARTS)
    result = run_layers(tmp_path / "twinkle", tmp_path / "rules")
    assert result.returncode == bool(complaints)
    found = [line.partition(".h:2: ")[2] for line in result.stdout.splitlines()]
    assert (found if complaints else []) == complaints


def test_the_rules_name_the_folders_that_are_there():
    lines = (line.split("#")[0] for line in (ROOT / "tools/layers.txt").read_text().splitlines())
    rules = [line.split(":")[0] for line in lines if line.strip()]
    folders = {path.name for path in (ROOT / "twinkle").iterdir() if path.is_dir()}
    assert {rule for rule in rules if "/" not in rule} == folders
    assert not [rule for rule in rules if not (ROOT / "twinkle" / rule).is_dir()]


def test_every_folder_of_the_cpp_program_has_tests(tracked):
    folders = {path.parent for path in tracked("twinkle/*.cpp")}
    without = [
        str(f) for f in folders if f.name != "cli" and not list((ROOT / f).glob("*_test.cpp"))
    ]
    assert not without


def test_no_file_is_named_after_nothing(tracked):
    names = [str(path) for path in tracked() if re.search(r"util|common|helper|misc", path.name)]
    assert not names


def test_the_file_tree_of_contributing_is_the_one_on_disk(tracked):
    tree = re.search(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    listed = {line.split()[0].rstrip("/") for line in tree.splitlines() if line[:1].strip()}
    on_disk = {path.parts[0] for path in tracked() if not path.parts[0].startswith(".")}
    assert listed == on_disk


def test_the_file_tree_of_contributing_names_every_folder_of_the_cpp_program(tracked):
    tree = re.search(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    listed = set(re.findall(r"^  (\w+)/ ", tree, re.MULTILINE))
    on_disk = {path.parts[1] for path in tracked("twinkle/*.h", "twinkle/*.cpp")}
    assert on_disk <= listed


# Where an exception is caught, and why. Everywhere else it goes up.
CATCHES = {
    "python/src/bind_mesh.cpp": "closes the group, whose ranks are all told it",
    "python/src/bind_text.cpp": "is the answer of check(): JSON cannot hold the row",
    "python/src/module.cpp": "becomes an exception of Python",
    "python/src/released_gil.h": "is how Python ends a daemon thread, which then sleeps",
    "twinkle/cli/chat/chat.cpp": "is a line of the terminal; the chat goes on",
    "twinkle/cli/program.cpp": "becomes an exit status",
    "twinkle/cli/serve/state.cpp": "is a journal that changed meanwhile, and is read again",
    "twinkle/cli/options/yaml.cpp": "gets the file's name and the line of the option",
    # A trial save knows its folder alone; a signal must hide no error while the engine closes.
    "twinkle/cli/train/training.cpp": "gets the name --output; is what a later signal says, too",
    "twinkle/data/encode.cpp": "is the answer of why_not(), which asks why a row cannot be encoded",
    "twinkle/data/dataset.cpp": "gets the row's place; the worker below knows the cause alone",
    "twinkle/cli/serve.cpp": "is a line of the log; the server goes on with the options it had",
    "twinkle/serving/api/router.cpp": "becomes a status of HTTP",
    "twinkle/serving/core/": "is an operation's end, or a try that comes again",
    "twinkle/serving/domain/task.h": "goes to who awaits the task",
    "twinkle/serving/log/": "goes to who waits for the record, or is tried again",
    "twinkle/serving/openai/": "ends the sample, for whoever hears it",
    "twinkle/serving/tinker/": "is the result of the request's future",
    "twinkle/serving/waiting/": "is an operation's end, or a try that comes again",
    "twinkle/server/openai/": "becomes an error in OpenAI's form",
    "twinkle/server/auth/access.cpp": "is told to the operator; callers get 503 meanwhile",
    "twinkle/server/http/connection.cpp": "is a source that cannot be read: its response is cut",
    "twinkle/server/http/server.cpp": "is a dropped request: 500 on that one's connection",
    "twinkle/server/handlers/": "uses up the number of its request; a full queue is 429",
    "twinkle/server/routes.cpp": "becomes a status of HTTP",
    "twinkle/server/worker.cpp": "goes to who gave the job",
    "twinkle/server/history/backup.cpp": "is a journal that changed meanwhile, and is copied again",
    "twinkle/server/history/history.cpp": "goes to who waits for the record",
    "twinkle/server/history/reader.cpp": "goes to who waits for the record, likewise",
    "twinkle/server/replay/decisions.h": "is written down for replays",
    "twinkle/server/service/lines.cpp": "ends the operation; one without room is tried again",
    "twinkle/server/service/operations.cpp": "becomes the answer of a promise",
    "twinkle/server/service/promises.cpp": "becomes 503: the disk does not give the result now",
    "twinkle/server/service/services.cpp": "is a version that stays for now, or closes a promise",
    "twinkle/server/service/snapshots.cpp": "is a snapshot that is not taken, or names its run",
    "twinkle/server/service/runs.cpp": "uses up the number of its request, or gets its fields",
    "twinkle/server/tenants/amounts.cpp": "goes on; who comes next measures anew",
    "twinkle/server/tenants/silence.cpp": "is a run that stays in memory for now",
    "twinkle/server/tinker/forward_backward_request.cpp": "protozero tells of broken bytes by it",
    "twinkle/store/journal.cpp": "is trouble with the disk, or memory, and is tried again",
    "twinkle/text/rows.cpp": "gets the row's number, likewise",
    "twinkle/text/template.cpp": "is the answer of check(), which asks why a row cannot be encoded",
    "twinkle/lora/saved_adapter.cpp": "gets the folder's name",
    "twinkle/model/gemma_families/gemma3.cpp": "gets which of the two ropes is wrong",
    "twinkle/model/families/chatglm.cpp": "gets the names that its config.json has",
    "twinkle/model/config.cpp": "gets the checkpoint's name, and what can be done",
    "twinkle/lora/targets.cpp": "boost tells of a bad expression in no other way",
    "twinkle/lora/peft/patterns.cpp": "likewise",
    "twinkle/kernels/cuda/graph.cpp": "a recording ends whatever its body threw, which goes on",
    "twinkle/lora/train_graphs.cpp": "a recording that fails is done without",
    "twinkle/sampler/decode_graphs.cpp": "likewise",
    "twinkle/kernels/simd/team.cpp": "goes to the thread that opened the loop",
    "twinkle/parallel/shards.cpp": "goes to the thread that waits for the gather",
    "twinkle/mesh/": "closes the group, whose ranks are all told it",
    "twinkle/sampler/sampler.cpp": "a decode's own becomes its request's error",
    "twinkle/sync/link.cpp": "is told to the other ranks, and goes on; their group may be closed",
    "twinkle/engine/": "goes into the future of the operation; other tenants' work goes on",
}


def test_exceptions_are_caught_in_the_named_places_alone(tracked):
    catching = {
        str(path)
        for path in tracked("twinkle/*.cpp", "twinkle/*.h", "python/src/*")
        if re.search(r"\bcatch *\(", (ROOT / path).read_text())
        and not re.search(r"_test\.|_for_test\.", path.name)
    }
    assert not {path for path in catching if not path.startswith(tuple(CATCHES))}


def test_no_folder_of_the_cpp_program_or_of_python_holds_20_files(tracked):
    held = Counter(path.parent for path in tracked("twinkle/*", "python/*", "tests/*", "tools/*"))
    assert not {str(folder): count for folder, count in held.items() if count >= 20}
