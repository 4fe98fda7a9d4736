"""The client of ModelScope's twinkle-kit 0.5.1 itself, from its wheel, against our server: in a
process that imports its twinkle in place of ours."""

import json
import os
import site
import subprocess
import sys
import zipfile

import pytest
from features import drawn
from service.twinkle.conftest import KEY

from twinkle.data_format import LoraConfig

WHEEL = "twinkle-kit==0.5.1"
NEEDS = ("peft", "pydantic", "requests", "datasets", "transformers", "torch")

# After its cookbook/client/twinkle/self_cognition.py, with rows of tokens and small sizes.
SCRIPT = """
import json, sys
import twinkle
assert sys.argv[1] in twinkle.__file__, twinkle.__file__
from peft import LoraConfig
from twinkle import init_twinkle_client
from twinkle_client.model import MultiLoraTransformersModel
from twinkle_client.sampler import vLLMSampler

url, key, rows = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
client = init_twinkle_client(base_url=url, api_key=key)
assert [m.model_name for m in client.get_server_capabilities().supported_models] == ["tiny"]
assert client.health_check() and client.get_capacity_info().free_loras > 0

model = MultiLoraTransformersModel(model_id="ms://tiny")
lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
model.add_adapter_to_model("kit", lora, gradient_accumulation_steps=2, save_dir="/tmp")
model.set_template("Qwen3_5Template")
model.set_processor("InputProcessor", padding_side="right")
model.set_loss("CrossEntropyLoss")
model.set_optimizer("Adam", lr=1e-2)
model.set_lr_scheduler("LinearLR")
model.add_metric("Accuracy", is_training=True)
configs = model.get_train_configs().model_dump()["result"]
losses, norms = [], []
for batch in rows[:2]:
    losses.append(model.forward_backward(inputs=batch).result["loss"])
    model.clip_grad_and_step()
for batch in rows[2:]:
    losses.append(model.forward_backward(inputs=batch).result["loss"])
    norms.append(model.clip_grad_norm(1.0).result)
    model.step(), model.zero_grad(), model.lr_step()
scored = model.forward_only(inputs=rows[0], disable_lora=True).result
metric = model.calculate_metric(is_training=True).result
saved = model.save(name="kit-epoch-0", save_optimizer=True, consumed_train_samples=8)
run = client.list_training_runs()[0]
print(run.model_dump_json(indent=2), file=sys.stderr)
(checkpoint,) = client.list_checkpoints(run.training_run_id)
assert checkpoint.twinkle_path == saved.twinkle_path, (checkpoint, saved)
assert client.get_weights_info(saved.twinkle_path).lora_rank == 4
assert client.get_training_run(run.training_run_id).lora_rank == 4
place = client.get_checkpoint_path(run.training_run_id, checkpoint.checkpoint_id)
assert place.twinkle_path == saved.twinkle_path
assert client.get_latest_checkpoint_path(run.training_run_id) == place.path
model.load(place.path, load_optimizer=True)
progress = model.resume_from_checkpoint(saved.twinkle_path)
state = model.get_state_dict().result
sampler = vLLMSampler(model_id="ms://tiny")
sampler.set_template("Template", model_id="ms://tiny")
(reply,) = sampler.sample(
    inputs=[{"input_ids": rows[0][0]["input_ids"]}],
    sampling_params={"max_tokens": 4, "temperature": 0, "logprobs": 1, "num_samples": 1},
    adapter_uri=saved.twinkle_path, num_samples=1,
)
chat = sampler.sample(
    inputs=[{"messages": [{"role": "user", "content": "Hello"}]}], sampling_params={"max_tokens": 2}
)
old = [token[0][1] for token in reply.sequences[0].logprobs]
model.set_loss("GRPOLoss", epsilon=0.2)
learnt = model.forward_backward(
    inputs=[reply.sequences[0].new_input_feature], advantages=[1.0], old_logps=[old]
).result["loss"]
assert client.delete_checkpoint(run.training_run_id, checkpoint.checkpoint_id).success
client.close()
print(json.dumps({"losses": losses, "norms": norms, "progress": progress, "old": old,
                  "tokens": reply.sequences[0].tokens, "learnt": learnt, "iters": metric["iters"],
                  "chat": len(chat[0].sequences[0].tokens), "configs": configs,
                  "logps": scored["logps"], "sum": sum(map(len, state))}))
"""


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """The folder with twinkle-kit's packages; skips where its wheel, or what it imports, cannot be
    had."""
    missing = []
    for name in NEEDS:
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        pytest.skip(f"twinkle-kit needs {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("twinkle_kit")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, WHEEL]
    got = subprocess.run(command, capture_output=True, text=True, timeout=300)
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        pytest.skip(f"{WHEEL} cannot be had: {got.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(folder / "packages")
    return folder / "packages"


def test_the_flow_of_self_cognition_gives_the_numbers_of_the_local_class(
    kit, served, local, tmp_path
):
    rows = [
        [{k: v.tolist() for k, v in row.items()} for row in drawn([9, 12], seed=step)]
        for step in range(4)
    ]
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(kit), *site.getsitepackages()])  # without what .pth files add
    out = subprocess.run(
        [sys.executable, "-S", "script.py", str(kit), served.url, KEY, json.dumps(rows)],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"},
    )  # fmt: skip
    assert out.returncode == 0, out.stdout[-2000:] + out.stderr[-4000:]
    found = json.loads(out.stdout.strip().splitlines()[-1])

    name = {"adapter_name": "kit"}
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
    local.add_adapter_to_model("kit", lora, gradient_accumulation_steps=2)
    local.set_optimizer("Adam", lr=1e-2, **name)
    local.set_lr_scheduler("LinearLR", **name)
    losses, norms = [], []
    for batch in rows[:2]:
        losses.append(local.forward_backward(inputs=batch, **name)["loss"])
        local.clip_grad_and_step(**name)
    for batch in rows[2:]:
        losses.append(local.forward_backward(inputs=batch, **name)["loss"])
        norms.append(str(local.clip_grad_norm(1.0, **name)))
        local.step(**name), local.zero_grad(**name), local.lr_step(**name)
    assert (found["losses"], found["norms"]) == (losses, norms)
    scored = local.forward_only(inputs=rows[0], disable_lora=True, **name)["logps"]
    assert found["logps"] == scored.tolist()
    assert found["progress"]["consumed_train_samples"] == 8 and found["progress"]["cur_step"] == 4
    assert len(found["tokens"]) == len(found["old"]) > 0 and found["chat"] > 0
    assert "LinearLR" in found["configs"] and found["iters"] == 2
