"""The source documents' Qwen3.5 scripts for one device, on a tiny Qwen3.5 in the hub's layout."""

import json
import shutil
from pathlib import Path

import pytest
import seed_scripts
from scripts.test_seed_scripts import BEST_PRACTICES, RESUMING, self_cognition

pytestmark = pytest.mark.usefixtures("engine_built")


@pytest.fixture(scope="module")
def tiny_qwen3_5_dir(tiny_llama_dir, tmp_path_factory):
    """Two layers, one of each kind, of width 64, in bfloat16, and the tiny llama's tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("tiny-qwen3_5")
    for file in Path(tiny_llama_dir).iterdir():
        if file.name.startswith(("tokenizer", "chat_template", "special_tokens")):
            shutil.copy(file, directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_llama_dir)
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
    config = transformers.Qwen3_5Config(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config=vision | {"out_hidden_size": 64, "num_position_embeddings": 16},
        tie_word_embeddings=True,
    )
    torch.manual_seed(20260301)
    model = transformers.Qwen3_5ForConditionalGeneration(config).to(torch.bfloat16)
    model.save_pretrained(directory)
    return str(directory)


def rows():
    return [
        {
            "messages": [
                {"role": "user", "content": row["query"]},
                {"role": "assistant", "content": row["response"]},
            ]
        }
        for row in self_cognition()
    ]


def test_single_gpu_script(run, tiny_qwen3_5_dir):
    run(seed_scripts.SINGLE_GPU, rows(), model=tiny_qwen3_5_dir)


def test_best_practices_script_saves_what_peft_loads_into_the_class_with_pictures(
    run, tmp_path, tiny_qwen3_5_dir
):
    out = run(BEST_PRACTICES, self_cognition(), model=tiny_qwen3_5_dir)
    assert "Total steps: 125" in out.stderr and "Eval metric" in out.stderr
    adapter = tmp_path / "output" / "last-checkpoint"
    targets = json.loads((adapter / "adapter_config.json").read_text())["target_modules"]
    assert {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"} <= set(targets)
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    base = transformers.Qwen3_5ForConditionalGeneration.from_pretrained(tiny_qwen3_5_dir)
    model = peft.PeftModel.from_pretrained(base, adapter)
    text = model.base_model.model.model.language_model
    learned = [p for n, p in text.named_parameters() if "lora_B" in n]
    assert len(learned) == 5 + 4 + 2 * 3
    assert all(bool(p.abs().max() > 0) for p in learned)


@pytest.mark.soak  # the same of a llama is in test_seed_scripts.py
def test_a_run_cut_in_two_equals_one_that_was_not(run, tiny_qwen3_5_dir):
    assert "equal" in run(RESUMING, self_cognition(64), model=tiny_qwen3_5_dir).stdout
