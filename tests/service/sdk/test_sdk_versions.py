"""Older SDKs, each installed without dependencies next to the newest: all do the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from service.conftest import environment

pytest.importorskip("tinker")
OLDER = ["tinker-0.25.0", "tinker-0.30.4"]  # as requirements/test-beside.txt has them
WORK = """
import json, os, sys, tinker
from tinker import types

def got(what):  # some versions return a future
    return what.result() if hasattr(what, "result") else what

tokens = [1, 93, 198, 204, 75, 282, 49, 14, 42, 30, 2]
inputs = {
    "target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[10]),
    "weights": types.TensorData(data=[1.0] * 10, dtype="float32", shape=[10]),
}
row = types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
adam = types.AdamParams(learning_rate=1e-2)

def step(client):
    passed = client.forward_backward([row], "cross_entropy")
    got(client.optim_step(adam))
    return got(passed).metrics["loss:sum"]

service = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-" + tinker.__version__)
client = got(service.create_lora_training_client(base_model="tiny", rank=4, seed=1))
losses = [step(client), step(client)]
path = got(client.save_state("half")).path
losses.append(step(client))
resumed = got(service.create_training_client_from_state_with_optimizer(path))
losses.append(step(resumed))
weights = got(service.create_training_client_from_state(path))
forward = got(weights.forward([row], "cross_entropy")).metrics["loss:sum"]
sampler = got(resumed.save_weights_and_get_sampling_client("end"))
params = types.SamplingParams(max_tokens=8, seed=3, temperature=1.0)
drawn = got(sampler.sample(types.ModelInput.from_ints(tokens), 2, params, topk_prompt_logprobs=3))
sampled = [[list(each.tokens), list(each.logprobs)] for each in drawn.sequences]
likeliest = drawn.topk_prompt_logprobs
print(json.dumps([tinker.__version__, losses, forward, sampled, likeliest]), flush=True)
os._exit(0)  # its threads may abort the process at its end
"""


@pytest.fixture
def folders():
    """Folders of the SDKs; the newest is installed with all else, and has none."""
    found = {version: Path(sys.prefix) / version for version in OLDER}
    for version, folder in found.items():
        if not folder.is_dir():
            pytest.skip(f".venv/{version} is not installed: scripts/setup.sh test")
    return [None, *found.values()]


def begun(server, folder):
    """A process that works with the SDK of this folder."""
    variables = environment()
    if folder:
        variables["PYTHONPATH"] = f"{folder}:{variables['PYTHONPATH']}"
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WORK, server.url],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_every_sdk_trains_saves_resumes_and_samples_with_the_same_numbers(server, folders):
    said = []
    for process in [begun(server, folder) for folder in folders]:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors[-4000:]
        said.append(json.loads(out.splitlines()[-1]))
    versions = [version for version, *_ in said]
    assert ["tinker-" + version for version in versions[1:]] == OLDER
    assert said[0][1:] == said[1][1:] == said[2][1:]
    losses, forward, sampled, likeliest = said[0][1:]
    assert losses[2] == losses[3] < losses[1] < losses[0], "it resumes with its optimizer"
    assert forward == losses[2] and len(sampled) == 2
    assert likeliest[0] is None and [len(row) for row in likeliest[1:]] == [3] * 10
