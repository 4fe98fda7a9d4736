"""Shared by the tests of `twinkle export`: the program, drawn models, and adapters of peft's."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytest.importorskip("twinkle._core", reason="the extension is not built: make build")

from parity import models  # noqa: E402

from twinkle import program  # noqa: E402

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def twinkle(*words):
    """The program's standard output."""
    if program.path() is None:
        pytest.skip("bin/twinkle is not built")
    done = subprocess.run(
        [sys.executable, "-c", "from twinkle.program import main; main()", *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def draw_model(family, tokenizer, folder, dtype=torch.float32, **more):
    """A small model with a tokenizer, whose heads, width and MLP differ."""
    torch.manual_seed(3)
    tokenizer.save_pretrained(folder)
    config = models.CONFIGS[family](
        vocab_size=len(tokenizer) + 5, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32 if family == "qwen3" else 16,
        max_position_embeddings=256, eos_token_id=tokenizer.eos_token_id, **more,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(folder)
    return folder


def draw_adapter(base, folder, targets=TARGETS, std=0.05):
    """peft's own adapter with random factors; its merged model in float32."""
    torch.manual_seed(4)
    model = peft.get_peft_model(
        models.load_reference(str(base)),
        peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, use_rslora=True),
    )
    for name, weight in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=std)
    model.save_pretrained(folder)
    return folder, model.merge_and_unload()
