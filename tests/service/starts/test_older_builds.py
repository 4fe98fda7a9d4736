"""What older builds of Twinkle have left on disk is read by this one."""

import json
import math
import shutil
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("tinker")
from service.starts.old_state import KEY, a_batch, pb, sample, scores
from service.wire import Wire

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

# Written by service/starts/old_state.py with the program of 7b87329 (24 November 2026): before
# states took the place of records, and before keys had limits.
STATE = Path(__file__).with_name("state_of_7b87329.tar.xz")


def step(wire, run, seq_id):
    """How many steps the run has made by then."""
    return wire.result(wire.step(run, seq_id, learning_rate=0.1).json())["metrics"]["step"]


def test_the_state_of_a_service_is_served_and_goes_on(start, twinkle, tiny_llama_dir, tmp_path):
    state, model = tmp_path / "state", tmp_path / "model"
    with tarfile.open(STATE) as packed:
        packed.extractall(tmp_path, filter="data")
    told = json.loads((state / "told.json").read_text())
    run, sampler = told["run"], told["sampler"]
    shutil.copytree(tiny_llama_dir, model)
    shutil.copy(state / "config.json", model)
    other = "--accept-other-arithmetic"  # it is another processor's, perhaps
    checked = twinkle("serve", "--check", "--model", model, "--state", state, other)
    assert checked.returncode == 0, checked.stderr
    server = start(model, state, other, "--log-level", "off")
    wire = Wire(server.url, KEY)
    unread = pb.SampleResponse.FromString(wire.result({"request_id": told["unread"]}))
    assert [len(each.tokens) for each in unread.sequences] == [4 * 8]  # int32
    assert scores(wire, sampler, 2) == pytest.approx(told["scores"], abs=0.02)
    assert wire.post("get_info", {"model_id": run}).json()["lora_rank"] == 1
    assert step(wire, run, 7) == 3
    assert isinstance(wire.result({"request_id": told["waits"]}), bytes)
    body = {"session_id": told["session"], "path": told["path"], "optimizer": True}
    loaded = wire.result(wire.ok("load_weights", body | {"model_seq_id": 1}))["model_id"]
    wire.result(a_batch(wire, loaded, 1))
    assert step(wire, loaded, 2) == 2

    server.kill()
    server.start_again()  # on what both builds have written
    wire = Wire(server.url, KEY)
    assert step(wire, run, 9) == 4
    assert isinstance(wire.result(sample(wire, sampler, 3)), bytes)
    assert server.stop() == 0


RANK, ALPHA, STEPS, NUM_TOKENS = 2, 4, 3, 7
ADAM = {"lr": 0.01, "betas": [0.8, 0.9], "eps": 1e-8, "weight_decay": 0.1}
WIDTHS = {"self_attn.q_proj": (64, 64), "mlp.down_proj": (128, 64)}  # in and out, of tiny_llama_dir


def folder_of_c23352c(folder):
    """An adapter with AdamW's state and gradients, as twinkle/engine/persist.cpp of c23352c (23
    November 2026) saved it: checkpoint_version 1, gradients by number. What is in it, by name."""
    values, moments, gradients = {}, {}, {}
    for layer in range(2):
        for linear, (width_in, width_out) in WIDTHS.items():
            for half, shape in (("A", (RANK, width_in)), ("B", (width_out, RANK))):
                name = f"model.layers.{layer}.{linear}.lora_{half}.weight"
                number = len(values)
                wave = torch.sin(torch.arange(math.prod(shape)) + number).reshape(shape)
                values[name] = wave * 0.05
                moments[f"optimizer/{name}.exp_avg"] = wave.flip(0) * 0.01
                moments[f"optimizer/{name}.exp_avg_sq"] = wave.square() * 0.001 + 1e-6
                gradients[f"grad/{number}"] = wave.flip(1) * 0.1
    folder.mkdir()
    safetensors.save_file(
        {f"base_model.model.{name}": value for name, value in values.items()},
        folder / "adapter_model.safetensors", {"format": "pt"},
    )  # fmt: skip
    safetensors.save_file(moments | gradients, folder / "training.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps({
        "base_model_name_or_path": "tiny", "bias": "none", "fan_in_fan_out": False,
        "inference_mode": True, "init_lora_weights": True, "lora_alpha": ALPHA,
        "lora_dropout": 0.0, "modules_to_save": None, "peft_type": "LORA", "r": RANK,
        "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM", "use_dora": False,
        "use_rslora": False,
    }))  # fmt: skip
    (folder / "trainer_state.json").write_text(json.dumps({
        "checkpoint_version": 1,
        "arithmetic": {
            "device": "cpu", "mixed_precision": "no", "products": "pairs", "deterministic": True,
            "torch": "2.11.0", "instructions": "AVX512",
        },
        "training": {
            "seed": 3, "calls": 4, "pending": 1, "num_tokens": float(NUM_TOKENS), "published": 0,
            "optimizer": {"optimizer": "AdamW", "steps": dict.fromkeys(values, STEPS)},
            "optimizer_options": ADAM,
        },
        "extra": "a note",
    }))  # fmt: skip
    return values, moments, gradients


def test_a_checkpoint_of_c23352c_is_loaded_and_goes_on_as_adamw_says(tiny_llama_dir, tmp_path):
    core = pytest.importorskip("twinkle._core")
    values, moments, gradients = folder_of_c23352c(tmp_path / "old")
    engine = core.Engine(tiny_llama_dir, mixed_precision="no", device="cpu")
    lora = {"r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj", "down_proj"]}
    engine.create(tenant="t", lora_json=json.dumps(lora)).result()
    loaded = engine.load(tenant="t", directory=str(tmp_path / "old"), optimizer=True).result()
    assert loaded == "a note"

    def tensors():
        told = engine.inspect(tenant="t", tensors=True).result()
        values = {name: torch.as_tensor(value) for name, value in told["tensors"].items()}
        return told["step"], values

    count, is_there = tensors()
    assert count == STEPS
    for number, (name, value) in enumerate(values.items()):
        assert torch.equal(is_there[name], value), name
        assert torch.equal(is_there[f"grad/{name}"], gradients[f"grad/{number}"]), name

    engine.step(tenant="t", options=json.dumps(ADAM)).result()
    beta1, beta2 = ADAM["betas"]
    count, after = tensors()
    assert count == STEPS + 1
    for number, (name, value) in enumerate(values.items()):
        gradient = gradients[f"grad/{number}"].double() / NUM_TOKENS
        first = beta1 * moments[f"optimizer/{name}.exp_avg"] + (1 - beta1) * gradient
        second = beta2 * moments[f"optimizer/{name}.exp_avg_sq"] + (1 - beta2) * gradient**2
        root = (second / (1 - beta2**count)).sqrt() + ADAM["eps"]
        kept = value.double() * (1 - ADAM["lr"] * ADAM["weight_decay"])
        expected = kept - ADAM["lr"] * first / (1 - beta1**count) / root
        torch.testing.assert_close(after[name].double(), expected, rtol=1e-5, atol=1e-7)
