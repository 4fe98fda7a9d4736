"""PEFT directories: those that `peft` writes are read, those written here it loads."""

import json

import numpy as np
import pytest

from twinkle import LoraConfig, _core
from twinkle.errors import InvalidError

peft = pytest.importorskip("peft", reason="the package peft is not installed")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def base():
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=32,
    )
    return transformers.LlamaForCausalLM(config)


def adapted(**options):
    torch.manual_seed(4)
    model = peft.get_peft_model(base(), peft.LoraConfig(task_type="CAUSAL_LM", **options))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_()
    return model


def logits(model):
    model.eval()
    with torch.no_grad():
        return model(torch.arange(8)[None]).logits


@pytest.mark.parametrize(
    "options",
    [
        {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"]},
        {"r": 3, "lora_dropout": 0.1, "use_rslora": True, "target_modules": "all-linear"},
        {"r": 4, "target_modules": ["q_proj", "o_proj"], "rank_pattern": {"q_proj": 2}}
        | {"alpha_pattern": {"layers.1.self_attn.o_proj": 3}},
        {"r": 2, "target_modules": r".*layers\.1.*\.(k|v)_proj"},
    ],
)
def test_a_directory_of_pefts_comes_back_with_the_same_logits(tmp_path, options):
    model = adapted(**options)
    model.save_pretrained(tmp_path / "theirs")
    config, modules = _core.read_peft(tmp_path / "theirs")
    assert config["r"] == options["r"]
    assert config["use_rslora"] == options.get("use_rslora", False)
    assert config["lora_dropout"] == options.get("lora_dropout", 0)
    weights = dict(model.named_parameters())
    for module, (a, b) in modules.items():
        for half, array in (("A", a), ("B", b)):
            expected = weights[f"base_model.model.{module}.lora_{half}.default.weight"]
            np.testing.assert_array_equal(array, expected.detach().numpy())
    assert 2 * len(modules) == sum("lora_" in name for name in weights)
    _core.write_peft(tmp_path / "ours", config, modules)
    again = peft.PeftModel.from_pretrained(base(), tmp_path / "ours")
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("bias", {"bias": "lora_only"}),
        ("modules_to_save", {"modules_to_save": ["lm_head"]}),
        ("lora_bias", {"lora_bias": True}),
        ("init_lora_weights", {"init_lora_weights": "pissa"}),
        ("trainable_token_indices", {"trainable_token_indices": [1]}),
    ],
)
def test_features_that_change_the_arithmetic_are_refused_by_name(tmp_path, field, options):
    adapted(r=4, target_modules=["q_proj"], **options).save_pretrained(tmp_path)
    with pytest.raises(InvalidError, match=f"adapter_config.json: field '{field}' is"):
        _core.read_peft(tmp_path)


@pytest.mark.parametrize("start", [True, False, "gaussian", "orthogonal", "eva"])
def test_how_the_factors_began_does_not_matter_once_they_are_saved(tmp_path, start):
    """Two ways to read a folder: making an adapter from it, and loading it."""
    options = {"r": 4, "target_modules": ["q_proj"], "init_lora_weights": start}
    if start == "eva":
        options["eva_config"] = peft.EvaConfig(rho=1.5)
    adapted(**options).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    assert written["init_lora_weights"] == start and bool(written["eva_config"]) == (start == "eva")
    assert _core.read_peft(tmp_path)[0]["r"] == 4
    taken = LoraConfig.from_any(tmp_path)
    named = taken.base_model_name_or_path
    assert taken == LoraConfig(r=4, target_modules=["q_proj"], base_model_name_or_path=named)
    if start not in (True, "gaussian"):  # factors to be drawn would be others
        with pytest.raises(InvalidError, match=r"lora: (init_lora_weights|eva_config) is"):
            LoraConfig.from_any(peft.LoraConfig(**options))


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora", "loftq", "corda", 0, 1, []])
def test_a_start_that_took_from_the_base_is_refused_of_a_folder_by_name(tmp_path, start):
    adapted(r=4, target_modules=["q_proj"]).save_pretrained(tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"init_lora_weights": start}))
    for read in (LoraConfig.from_any, _core.read_peft):
        with pytest.raises(InvalidError, match="field 'init_lora_weights' is"):
            read(tmp_path)


def test_no_target_modules_beside_parameters_may_be_an_empty_list(tmp_path):
    fields = {"r": 4, "target_modules": [], "target_parameters": ["mlp.experts.down_proj"]}
    config = transformers.MixtralConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
        vocab_size=32,
    )
    theirs = peft.LoraConfig(task_type="CAUSAL_LM", **fields)
    peft.get_peft_model(transformers.MixtralForCausalLM(config), theirs).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"] == []
    assert _core.read_peft(tmp_path)[0]["target_modules"] == []
    for config in (LoraConfig(**fields), *map(LoraConfig.from_any, (tmp_path, theirs, fields))):
        assert config.target_modules is None
        assert config.target_parameters == ["mlp.experts.down_proj"]
    with pytest.raises(InvalidError, match=r"lora: target_modules is \[\], it must be"):
        LoraConfig(target_modules=[])


def test_a_refused_adapter_leaves_the_directory_as_it_was(tmp_path):
    config = {"peft_type": "LORA", "r": 2, "target_modules": ["q"]}
    pair = (np.ones((2, 3), np.float32), np.ones((4, 2), np.float32))
    _core.write_peft(tmp_path / "a", config, {"q": pair})
    with pytest.raises(InvalidError, match=r"must be \[r, in\] with r = 3"):
        _core.write_peft(tmp_path / "a", config | {"r": 3}, {"q": pair})
    read, modules = _core.read_peft(tmp_path / "a")
    assert read["r"] == 2
    np.testing.assert_array_equal(modules["q"][1], pair[1])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
