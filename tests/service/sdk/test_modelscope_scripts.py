"""The tinker SDK as scripts of ModelScope's Twinkle use it: init_tinker_client(), in a process of
its own, since it changes the SDK, and its helpers; the documents' scripts as they are."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import seed_scripts
from seed_scripts import with_sizes
from service.conftest import environment

pytest.importorskip("tinker")
from tinker import types

from twinkle.errors import InvalidError
from twinkle.server.common import datum_to_input_feature, input_feature_to_datum
from twinkle.server.tinker import common

# After the documents' script and cookbook/client/tinker of ModelScope's Twinkle, with small sizes.
SCRIPT = """
import os, sys
from tinker import types
from twinkle import init_tinker_client
from twinkle.server.common import input_feature_to_datum
from twinkle_client import init_tinker_compat_client

init_tinker_client()
init_tinker_client()
from tinker import ServiceClient

service = ServiceClient(
    base_url=os.environ.get("TWINKLE_SERVER_URL", "http://localhost:8000"),
    api_key=os.environ.get("TWINKLE_SERVER_TOKEN", "EMPTY_TOKEN"),
)
training = service.create_lora_training_client(base_model="tiny", rank=4)
row = {"input_ids": [1, 93, 198, 204, 75], "labels": [-100, 198, 204, 75, -100]}
loss = []
for _ in range(2):
    passed = training.forward_backward([input_feature_to_datum(row)], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    loss.append(passed.result().metrics["loss:sum"])
path = training.save_state("learned").result().path
assert path.startswith("tinker://") and loss[1] < loss[0], (path, loss)
path = path.replace("tinker://", "twinkle://")

sampling = service.create_sampling_client(model_path=path, base_model="tiny")
prompt, params = types.ModelInput.from_ints(row["input_ids"]), types.SamplingParams(max_tokens=3)
assert len(sampling.sample(prompt=prompt, sampling_params=params, num_samples=2).result().sequences)
other = init_tinker_compat_client(os.environ["TWINKLE_SERVER_URL"], "EMPTY_TOKEN")
for make in (other.create_training_client_from_state_with_optimizer,
             other.create_training_client_from_state):
    make(path=path).forward([input_feature_to_datum(row)], "cross_entropy").result()
found = other.create_rest_client().get_weights_info_by_tinker_path(path).result()
print(found.base_model, flush=True)
os._exit(0)  # the SDK's threads go on
"""


def test_a_script_with_any_key_and_paths_of_twinkle_runs(server):
    variables = {**environment(), "TWINKLE_SERVER_URL": server.url}
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "TWINKLE_SERVER_TOKEN"):
        variables.pop(name, None)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=variables, capture_output=True, text=True, timeout=300
    )
    assert (run.returncode, run.stdout) == (0, "tiny\n"), run.stderr[-4000:]


IDS = ("Qwen/Qwen3.5-4B", "Qwen/Qwen3-30B-A3B-Instruct-2507")


@pytest.fixture(scope="module")
def run(start, tiny_llama_dir, tmp_path_factory):
    """run(script, sizes): a script of the documents against a server that has its models."""
    folder = tmp_path_factory.mktemp("scripts")
    named = [text for name in IDS for text in ("--name", name)]
    server = start(tiny_llama_dir, tmp_path_factory.mktemp("state"), *named)
    rows = [{"query": f"Who are you, {i}?", "response": "I am {{NAME}}."} for i in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    variables = {
        **environment(),
        "MODELSCOPE_TOKEN": "a-key",
        "TWINKLE_MODEL_ID_ALIASES": ",".join(f"{name}={tiny_llama_dir}" for name in IDS),
        "TWINKLE_DATASET_ID_ALIASES": "swift/self-cognition=rows.jsonl",
    }

    def script(text, sizes):
        written = with_sizes(text, dict.fromkeys(sizes.pop("urls"), server.url) | sizes)
        (folder / "script.py").write_text(written)
        done = subprocess.run(
            [sys.executable, "script.py"], cwd=folder, env=variables, capture_output=True,
            text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    yield script
    assert server.stop() == 0


SIZES = {"urls": ["http://www.modelscope.cn/twinkle"], "range(500)": "range(8)"}


def test_the_documents_script_of_the_tinker_client(run):
    printed = run(seed_scripts.TINKER, dict(SIZES))
    assert len(re.findall("^Training Metrics: ", printed, re.MULTILINE)) == 3
    saved = re.findall(r"^Saved checkpoint to tinker://\S+/(\S+)$", printed, re.MULTILINE)
    assert saved == [f"twinkle-lora-{epoch}" for epoch in range(3)]


def test_the_readmes_tinker_like_api(run):
    told = "\nprint(fwdbwd_result.metrics['loss:sum'], optim_result.metrics['step'])\n"
    loss, step = map(float, run(seed_scripts.TINKER_LIKE + told, dict(SIZES)).split())
    assert loss > 0 and step == 3


def test_the_documents_existing_tinker_code(run):
    told = (
        "print([m.model_name for m in service_client.get_server_capabilities().supported_models])"
    )
    text = "api_key = 'tml-key'\n" + seed_scripts.COMPATIBILITY + told
    assert IDS[0] in run(text, {"urls": ["https://your-twinkle-endpoint"]})


def test_a_row_becomes_a_datum_and_comes_back():
    row = {"input_ids": np.array([1, 2, 3]), "labels": np.array([-100, 3, -100]), "messages": []}
    datum = input_feature_to_datum(row)
    assert isinstance(datum, types.Datum) and datum.model_input.to_ints() == [1, 2, 3]
    inputs = {name: value.to_numpy().tolist() for name, value in datum.loss_fn_inputs.items()}
    assert inputs == {"target_tokens": [0, 3, 0], "weights": [0.0, 1.0, 0.0]}
    assert datum_to_input_feature([datum], template=None) == [
        {"input_ids": [1, 2, 3], "labels": [-100, 3, -100]}
    ]
    del datum.loss_fn_inputs["weights"]
    assert datum_to_input_feature(datum)["labels"] == [-100, 3, -100]
    assert input_feature_to_datum({"input_ids": [1]}).loss_fn_inputs == {}
    assert common.input_feature_to_datum is input_feature_to_datum


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({}, "a row has no input_ids"),
        ({"input_ids": [1.5]}, "input_ids is .*, it must be one sequence of integers"),
        ({"input_ids": [1, 2], "labels": [1]}, "2 input_ids and 1 labels"),
        ({"input_ids": [1], "pixel_values": [[0.5]]}, "a row has pixel_values, but models read"),
    ],
)
def test_a_row_that_is_none_is_named(row, text):
    with pytest.raises(InvalidError, match=text):
        input_feature_to_datum(row)
    with pytest.raises(InvalidError, match="a datum has no target_tokens"):
        datum_to_input_feature(input_feature_to_datum({"input_ids": [1]}))
