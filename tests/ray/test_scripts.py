"""The Ray scripts of the source documents, as they are but for sizes: model and data ids lead to
local files, and TWINKLE_DEVICE=cpu puts groups that ask for GPUs on CPUs."""

import json
import re
from pathlib import Path

import pytest
import seed_scripts
from parallel.processes import sha256
from seed_scripts import with_sizes

ROOT = Path(__file__).parents[2]
DEMO, PAGE = ROOT / "examples/ray_grpo.py", ROOT / "docs/ray.md"

SFT = seed_scripts.README
MODES = with_sizes(
    seed_scripts.MODES, {"ranks=4": "ranks=2", "world_size=4, dp_size=4": "world_size=2, dp_size=2"}
)
GRPO = with_sizes(
    seed_scripts.GRPO,
    {
        "MODEL_GPUS = 4": "MODEL_GPUS = 2",
        "SAMPLER_GPUS = 4": "SAMPLER_GPUS = 2",
        "NUM_GENERATIONS = 8": "NUM_GENERATIONS = 4",
        "MAX_NEW_TOKENS = 4096": "MAX_NEW_TOKENS = 16",
        "MAX_STEPS = 200": "MAX_STEPS = 3",
        "\nBATCH_SIZE = 16": "\nBATCH_SIZE = 2",
        "MINI_BATCH_SIZE = 16": "MINI_BATCH_SIZE = 4",
        "'max_model_len': 4096": "'max_model_len': 256",
    },
)

IDS = ("Qwen/Qwen3.5-4B", "Qwen/Qwen2.5-7B-Instruct")


@pytest.fixture
def run(tiny_llama_dir, tmp_path):
    """run(cluster, text, rows): a script in a folder of its own; its completed process."""

    def start(cluster, text, rows=(), name="script"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(text)
        data = folder / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return cluster.run(
            ["train.py"],
            folder=folder,
            TWINKLE_MODEL_ID_ALIASES=",".join(f"{i}={tiny_llama_dir}" for i in IDS),
            TWINKLE_DATASET_ID_ALIASES=f"swift/self-cognition={data},modelscope/gsm8k={data}",
        )

    return start


def self_cognition(count):
    return [
        {"query": f"Who are you, {i}?", "response": "I am {{NAME}} of {{AUTHOR}}.", "tag": "en"}
        for i in range(count)
    ]


def adapter(folder):
    return sha256(folder / "output/last-checkpoint")


# Scripts below have dp_size=2; soak has both axes, on four workers.
@pytest.mark.parametrize(("fsdp", "dp"), [(2, 1), pytest.param(2, 2, marks=pytest.mark.soak)])
def test_the_readmes_script_gives_the_losses_and_the_adapter_of_one_process(
    fsdp, dp, run, cluster, tmp_path
):
    rows, mesh = self_cognition(40), "fsdp_size=4, dp_size=2"
    sizes = {"ranks=8": f"ranks={fsdp * dp}", mesh: f"fsdp_size={fsdp}, dp_size={dp}"}
    together = run(cluster, with_sizes(SFT, sizes), rows, "together")
    alone = {"ranks=8": "ranks=1", mesh: "dp_size=1", "mode='ray'": "mode='local'"}
    alone = run(cluster, with_sizes(SFT, alone), rows, "alone")
    told = [
        re.findall(r"Current is step.*'loss': '?([0-9.]+)", r.stdout) for r in (together, alone)
    ]
    assert told[0] == told[1] and told[0]
    assert adapter(tmp_path / "together") == adapter(tmp_path / "alone")


def test_the_pages_script_prints_what_one_process_prints(run, cluster, tmp_path):
    script = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Who are you, {i}?"},
                {"role": "assistant", "content": "I am Nova."},
            ]
        }
        for i in range(6)
    ]
    in_one = {"ranks=2": "ranks=1", "dp_size=2": "dp_size=1", 'mode="ray"': 'mode="local"'}
    printed, saved = [], []
    for name, sizes in (("together", {}), ("alone", in_one)):
        text = with_sizes(script, {"my.jsonl": "rows.jsonl", "smollm2": IDS[0]} | sizes)
        *losses, last = run(cluster, text, rows, name).stdout.splitlines()
        assert last.startswith("saved ")
        printed.append(losses)
        saved.append(sha256(tmp_path / name / "outputs/ray/adapter"))
    assert printed[0] == printed[1] and len(printed[0]) == 3
    assert saved[0] == saved[1]


def test_the_grpo_script_samples_in_one_group_and_trains_in_the_other(run, cluster, tmp_path):
    rows = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(6)]
    done = run(cluster, GRPO, rows)
    assert re.findall(r"\[Step (\d)/3\]", done.stderr) == ["1", "2"], done.stderr
    assert "Training completed. optim_steps=3" in done.stderr
    assert "group sampler: 2 x cpu by TWINKLE_DEVICE, not GPU, ranks [2, 3]" in done.stderr
    saved = tmp_path / "script/output/grpo-gsm8k-checkpoint/adapter_model.safetensors"
    assert saved.is_file()


COMMANDS = """
CUDA_VISIBLE_DEVICES=0,1 ray start --head --port=6379 --num-gpus=2
CUDA_VISIBLE_DEVICES=2,3 ray start --address=127.0.0.1:6379 --num-gpus=2
CUDA_VISIBLE_DEVICES="" ray start --address=127.0.0.1:6379 --num-gpus=0
"""

# Parts that the document leaves out: the imports of two classes, and the code at its dots.
IMPORTS = """
from twinkle.model import TransformersModel
from twinkle.sampler import vLLMSampler
"""
WORK = """
    responses = sampler.sample([{'input_ids': [5, 6, 7]}] * 3, {'max_tokens': 4})
    print('samples', len(responses))
"""

CARDS = """
import os
del os.environ['TWINKLE_DEVICE']
import twinkle
from twinkle import DeviceGroup
from remote.things import Thing

groups = [DeviceGroup(name=name, ranks=2, device_type='cuda') for name in ('model', 'sampler')]
twinkle.initialize(mode='ray', groups=groups)
for name in ('model', 'sampler'):
    print('cards', sorted(fact['card'] for fact in Thing(remote_group=name).facts()))
"""


def test_the_documents_commands_make_three_nodes_on_which_its_script_runs(run, empty_cluster):
    for number, line in enumerate(COMMANDS.strip().splitlines()):
        visible, command = line.split(" ray start ")
        started = command.replace("6379", str(empty_cluster.port)).split()
        # Nodes that share a machine need less memory, and as many CPUs as they are to have.
        started += ["--num-cpus=2", "--object-store-memory=100000000"]
        if "--head" in started:
            started += [f"--temp-dir={empty_cluster.folder / 't'}", "--include-dashboard=false"]
        cards = visible.partition("=")[2].strip('"')
        empty_cluster.start(*started, CUDA_VISIBLE_DEVICES=cards)
        empty_cluster.wait_for(number + 1)  # nodes that join at the same time may both fail
    # Groups of GPUs get the cards of the nodes; only an engine would look whether they are there.
    done = run(empty_cluster, IMPORTS + MODES.replace("    ...\n", WORK) + CARDS)
    assert "samples 3" in done.stdout
    assert sorted(done.stdout.splitlines()[-2:]) == ["cards ['0', '1']", "cards ['2', '3']"]


def test_the_demo_prints_the_same_with_one_worker_and_with_two_which_it_has_unless_told(
    cluster, tiny_llama_dir
):
    printed = []
    for workers, size in (("--workers", 1), 1), ((), 2):
        done = cluster.run(
            [DEMO, "--model", tiny_llama_dir, "--steps", 2, *workers, "--max-tokens", 8]
        )
        assert f"group workers: {size} x cpu, ranks {list(range(size))}" in done.stdout
        printed.append(re.findall(r"^step .*norm=[0-9.]+", done.stdout, re.MULTILINE))
    assert printed[0] == printed[1] and len(printed[0]) == 2


OWN = """
import twinkle
from twinkle import DeviceGroup, remote_class, remote_function


class Refused(Exception):
    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


class Row:
    def __init__(self, text):
        self.text = text


@remote_class(execute="all")
class Scorer:
    def __init__(self, least=0):
        self.least = least

    @remote_function(dispatch="slice_dp", collect="flatten")
    def score(self, rows):
        if any(len(row.text) < self.least for row in rows):
            raise Refused("a row", "short")
        return [Row(row.text * 2) for row in rows]


@remote_class(execute="all")
class Lengths:  # without a constructor
    @remote_function(dispatch="slice_dp", collect="flatten")
    def of(self, rows):
        return [len(row.text) for row in rows]


@remote_class(execute="all")
class Child(Scorer):
    def __init__(self):
        super().__init__(least=3)


twinkle.initialize(mode="ray", groups=[DeviceGroup("two", ranks=2, device_type="cpu")])
rows = [Row("a"), Row("bb"), Row("ccc")]
scored = Scorer(remote_group="two").score(rows)
print([row.text for row in scored], isinstance(scored[0], Row))
print(Lengths(remote_group="two").of(rows)())
try:
    print(Child(remote_group="two").score(rows)())
except Exception as error:
    print(type(error).__name__, error)
"""


def test_classes_of_the_script_itself_travel_to_the_workers_and_back(run, cluster):
    lines = run(cluster, OWN).stdout.splitlines()
    assert lines[-3:-1] == ["['aa', 'bbbb', 'cccccc'] True", "[1, 2, 3]"]
    assert re.match(r"InternalError infra: Refused: a row: short \(rank 0 of group two", lines[-1])
