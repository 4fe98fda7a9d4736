"""Module paths of ModelScope's Twinkle: imports of its scripts give what lives elsewhere here."""

import importlib
import pickle
import pydoc
import subprocess
import sys

import pytest

import twinkle
from twinkle.utils.parallel import PosixFileLock


@pytest.mark.parametrize(
    ("path", "name", "home"),
    [
        ("twinkle.utils", "DeviceMesh", "twinkle"),
        ("twinkle.utils", "Torch", "twinkle.module_paths.framework"),
        ("twinkle.utils", "stable_seed", "twinkle.seeding"),
        ("twinkle.utils.framework", "Torch", "twinkle.module_paths.framework"),
        ("twinkle.utils.parallel", "PosixFileLock", "twinkle.module_paths.file_lock"),
        ("twinkle.utils.device_mesh", "Platform", "twinkle"),
        ("twinkle.dataset.base", "DatasetMeta", "twinkle"),
        ("twinkle.infra", "get_device_placement", "twinkle"),
        ("twinkle.preprocessor.olympiad_bench", "OlympiadBenchProcessor", "twinkle.preprocessor"),
        ("twinkle.reward.olympiad_bench", "OlympiadBenchAccuracyReward", "twinkle.reward"),
        ("twinkle.model.transformers", "TransformersModel", "twinkle"),
        ("twinkle.model.transformers.moe.router_replay", "RouterReplayAction", "twinkle.model"),
        ("twinkle.model.megatron", "MegatronModel", "twinkle.model"),
        ("twinkle.patch.no_split_modules", "NoSplitModulesPatch", "twinkle.patch"),
        ("twinkle_agentic.reward", "F1Reward", "twinkle.reward"),
        ("twinkle_client.dataset", "Dataset", "twinkle"),
        ("twinkle_client.dataloader", "DataLoader", "twinkle"),
    ],
)
def test_a_path_gives_the_class_that_lives_elsewhere(path, name, home):
    found = getattr(importlib.import_module(path), name)
    assert found is getattr(importlib.import_module(home), name)
    assert pickle.loads(pickle.dumps(found)) is found


def test_a_path_is_a_module_like_others():
    code = (
        "import twinkle.utils.framework as framework, twinkle.module.scheduler, twinkle\n"
        "from twinkle.utils import torch_util, framework_util\n"
        "assert twinkle.utils.framework is framework and not framework.Torch.is_npu_available()\n"
        "print(torch_util.to_device.__module__, framework_util.stable_seed.__module__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["twinkle.tensors", "twinkle.seeding"]
    module = importlib.import_module("twinkle.utils.framework")
    assert "names of twinkle.module_paths.framework." in pydoc.render_doc(module)
    with pytest.raises(ImportError, match=r"cannot import name 'Nonsense' from 'twinkle\.utils"):
        exec("from twinkle.utils.framework import Nonsense")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'twinkle\.utils\.nonsense'"):
        importlib.import_module("twinkle.utils.nonsense")


@pytest.mark.parametrize("name", ["MegatronModel", "MultiLoraMegatronModel"])
def test_a_model_of_megatron_is_refused_when_it_is_made(name):
    kind = getattr(twinkle.model, name)
    other = name.replace("Megatron", "Transformers")
    with pytest.raises(twinkle.NotAvailableError, match=f"{name} needs Megatron.*use {other}"):
        kind(model_id="smollm2")


@pytest.mark.parametrize(
    "line",
    ["from twinkle_agentic import rollout", "from twinkle_agentic.tools.base import Tool"],
)
def test_what_is_not_here_of_the_agents_package_is_named(line):
    with pytest.raises(twinkle.NotAvailableError, match=r"twinkle_agentic.* needs rollouts of"):
        exec(line)


TRIES = "import sys, filelock; filelock.FileLock(sys.argv[1]).acquire(blocking=False)"


def test_a_file_lock_is_held_by_one_process_at_a_time(tmp_path):
    lock = PosixFileLock(str(tmp_path / "lock"))
    command = [sys.executable, "-c", TRIES, tmp_path / "lock"]
    with lock:
        copy = pickle.loads(pickle.dumps(lock))
        assert not copy.is_locked
        assert b"Timeout" in subprocess.run(command, capture_output=True).stderr
    lock.acquire()
    lock.close()
    subprocess.run(command, check=True)
