"""Whole scripts of clients against a server: the cookbook's, two steps of each, and those of the
source documents, but for sizes and places."""

import json
import re
import subprocess
import sys
from pathlib import Path

import client_scripts
import pytest
from seed_scripts import with_sizes
from service.conftest import environment
from service.twinkle.conftest import reference

from twinkle.core import core

pytest.importorskip("peft")
COOKBOOK = Path(__file__).parents[3] / "cookbook/client/twinkle"
DOCUMENTED = "Qwen/Qwen3.5-4B"
IDENTITY = [{"query": f"Who are you, {i}?", "response": "I am {{NAME}}."} for i in range(8)]
SUMS = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(4)]
PAIRS = [{"prompt": f"Question {i}?", "chosen": f"Yes, {i}.", "rejected": "No."} for i in range(4)]


@pytest.fixture
def served(tiny_llama_dir, tmp_path_factory):
    names = ("tiny", DOCUMENTED)
    it = reference()(tiny_llama_dir, tmp_path_factory.mktemp("state"), names)
    yield it
    it.close()


@pytest.fixture
def run(served, tiny_llama_dir, tmp_path):
    """run(command, rows): a script in a process of its own, with these rows; what it prints."""

    def script(command, rows=(), **variables):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        of_test = {
            "TWINKLE_SERVER_URL": served.url,
            "TWINKLE_MODEL_ID": "tiny",
            "TWINKLE_MODEL_ID_ALIASES": f"tiny={tiny_llama_dir},{DOCUMENTED}={tiny_llama_dir}",
            "TWINKLE_DATASET_ID": "rows.jsonl",
            "TWINKLE_DATASET_ID_ALIASES": "swift/self-cognition=rows.jsonl",
            "TWINKLE_STEPS": "2",
            "TWINKLE_MAX_TOKENS": "4",
        }
        out = subprocess.run(
            [sys.executable, *map(str, command)], cwd=tmp_path, capture_output=True, text=True,
            env={**environment(), **of_test, **variables}, stdin=subprocess.DEVNULL, timeout=300,
        )  # fmt: skip
        assert out.returncode == 0, out.stdout[-2000:] + out.stderr[-4000:]
        return out.stdout + out.stderr

    return script


def test_the_cookbooks_scripts_train_and_sample_with_what_they_saved(run, served):
    for name, rows in (("dpo.py", PAIRS), ("short_math_grpo.py", SUMS), ("embedding.py", ())):
        printed = run([COOKBOOK / name], rows)
        assert len(re.findall(r"^step \d: ", printed, re.MULTILINE)) == 2, printed
        (path,) = re.findall(r"^saved (twinkle://\S+)$", printed, re.MULTILINE)
        assert (served.folder(path) / "adapter_model.safetensors").is_file()
    printed = run([COOKBOOK / "self_cognition.py"], IDENTITY)
    (path,) = re.findall(r"^saved (twinkle://\S+)$", printed, re.MULTILINE)
    again = run([COOKBOOK / "self_cognition.py", path], IDENTITY)
    first, then = (
        float(re.search(r"^step 2: loss (\S+)$", text, re.MULTILINE)[1])
        for text in (printed, again)
    )
    assert then < first  # it has gone on
    (later,) = re.findall(r"^saved (twinkle://\S+)$", again, re.MULTILINE)
    states = [core().loop_state_in(str(served.folder(each))) for each in (path, later)]
    assert [state["consumed_train_samples"] for state in states] == [16, 32]
    for weights in ([], [path]):
        sampled = run([COOKBOOK / "sample.py", *weights])
        assert len(re.findall(r"^[01] .* -> ", sampled, re.MULTILINE)) == 4


def test_the_cookbooks_upload_returns_when_it_is_there(run, served, monkeypatch):
    from concurrent.futures import Future

    from twinkle.hub import HubOperation

    pushed = []

    def push(repository, folder, token=None):
        pushed.append((repository, folder, token))
        done = Future()
        done.set_result(None)
        return done

    monkeypatch.setattr(HubOperation, "async_push_to_hub", push)
    printed = run([COOKBOOK / "embedding.py"])
    (path,) = re.findall(r"^saved (\S+)$", printed, re.MULTILINE)
    arguments = [path, "ms://me/mine"]
    printed = run([COOKBOOK / "upload_to_hub.py", *arguments], TWINKLE_HUB_TOKEN="secret")
    assert f"uploaded {path} to ms://me/mine" in printed
    assert pushed == [("ms://me/mine", str(served.folder(path)), "secret")]


def test_the_documents_script_of_twinkles_client(run, served, tmp_path):
    text = with_sizes(
        client_scripts.TWINKLE, {"http://127.0.0.1:8000": served.url, "range(500)": "range(8)"}
    )
    text = text.replace("# resume_path = ", "resume_path = ")
    (tmp_path / "script.py").write_text(text)
    for known in ("", "Resuming training from twinkle://"):
        printed = run(["script.py"], IDENTITY)
        assert known in printed
        paths = re.findall(r"Saved checkpoint: (twinkle://\S+)", printed)
        assert [path.rpartition("/")[2] for path in paths] == [
            f"twinkle-epoch-{i}" for i in range(3)
        ]
        assert all((served.folder(path) / "adapter_model.safetensors").is_file() for path in paths)


def test_the_documents_http_mode(run, served, tmp_path):
    """The reader fills in data, parameters and rewards, and the loss that takes the latter."""
    filled = """
from peft import LoraConfig
from twinkle_client.dataloader import DataLoader
from twinkle_client.dataset import Dataset, DatasetMeta
lora_config = LoraConfig(r=4, target_modules='all-linear')
dataset = Dataset(DatasetMeta('rows.jsonl'))
dataset.map('GSM8KProcessor')
dataloader = DataLoader(dataset=dataset, batch_size=2)
params, advantages = {'max_tokens': 4, 'logprobs': 1}, [1.0, -1.0]
"""
    loss = "model.set_optimizer('AdamW', lr=1e-4)"
    text = with_sizes(
        client_scripts.HTTP,
        {"http://localhost:8000": served.url, loss: f"{loss}\nmodel.set_loss('GRPOLoss')"},
    )
    steps = "print('iters', model.calculate_metric()['iters'])"
    (tmp_path / "script.py").write_text(filled + text + steps)
    assert "iters 2" in run(["script.py"], SUMS)


def test_a_script_without_a_server_ends_with_the_remedy(tmp_path):
    out = subprocess.run(
        [sys.executable, COOKBOOK / "sample.py"], capture_output=True, text=True, cwd=tmp_path,
        env={**environment(), "TWINKLE_SERVER_URL": "http://127.0.0.1:9"},
    )  # fmt: skip
    assert out.returncode == 1 and "start `twinkle serve` there" in out.stderr.splitlines()[-1]
