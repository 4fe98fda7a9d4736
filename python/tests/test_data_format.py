"""SamplingParams, LoraConfig and the helpers of trajectories."""

import json

import numpy as np
import pytest

from twinkle import InvalidError, NotFoundError
from twinkle.data_format import LoraConfig, SamplingParams, pack_value, user_data_get


def test_sampling_params_of_the_documents():
    params = SamplingParams(max_tokens=4096, num_samples=1, logprobs=1)
    assert (params.temperature, params.top_k, params.top_p, params.stop) == (1.0, -1, 1.0, None)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("max_tokens", -1, "max_tokens is -1, it must be an integer of at least 0"),
        ("max_tokens", 1.5, "max_tokens is 1.5, it must be an integer"),
        ("seed", -1, "seed is -1"),
        ("temperature", -0.1, "temperature is -0.1, it must be a number of at least 0"),
        (
            "temperature",
            1e-31,
            r"temperature is 1e-31, it must be 0 \(greedy\) or from 1e-30 to 1e30",
        ),
        ("temperature", "hot", "temperature is 'hot', it must be a number"),
        ("top_k", -2, "top_k is -2, it must be an integer of at least -1, at most 2147483647"),
        ("top_k", 2**31, "top_k is 2147483648, it must be an integer of at least -1, at most 21"),
        ("top_p", 0, "top_p is 0, it must be above 0 and at most 1"),
        ("top_p", 1.1, "top_p is 1.1, it must be a number of at least 0, at most 1"),
        ("min_p", -0.1, "min_p is -0.1, it must be a number of at least 0, at most 1"),
        ("min_p", 1.1, "min_p is 1.1, it must be a number of at least 0, at most 1"),
        ("repetition_penalty", 0, "repetition_penalty is 0"),
        (
            "repetition_penalty",
            1e-300,
            "repetition_penalty is 1e-300, it must be a number of at least 1e-06",
        ),
        ("num_samples", 0, "num_samples is 0"),
        ("logprobs", -1, "logprobs is -1"),
        ("prompt_logprobs", -1, "prompt_logprobs is -1"),
        ("logprobs", 129, "logprobs is 129, it must be an integer of at least 0, at most 128"),
        (
            "prompt_logprobs",
            129,
            "prompt_logprobs is 129, it must be an integer of at least 0, at most 128",
        ),
        ("stop", ["a", 1], "stop is"),
        ("stop", ["a", ""], r'stop\[1\] is "", it must hold at least 1 character'),
        ("stop", [5, 2**31], r"stop\[1\] is 2147483648, it must be from 0 to 2147483647"),
        ("stop", [True], r"stop is \[True\], it must be a text, a list of texts or of token ids"),
        ("stop", {"a"}, r"stop is \{'a'\}, it must be a text, a list of texts or of token ids"),
        ("routed_experts", 1, "routed_experts is 1, it must be True or False"),
    ],
)
def test_wrong_sampling_values_are_named(field, value, text):
    with pytest.raises(InvalidError, match=text):
        SamplingParams(**{field: value})


def test_from_dict_takes_the_other_name_and_refuses_unknown_ones():
    assert SamplingParams.from_dict({"max_new_tokens": 3}).max_tokens == 3
    with pytest.raises(InvalidError, match=r"unknown argument 'warmth'; it takes .*, temperature"):
        SamplingParams.from_dict({"warmth": 1})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SamplingParams(n=2), "^sampler: SamplingParams: unknown argument 'n'; it takes .*"
         "Did you mean num_samples\\?$"),
        (lambda: SamplingParams(temprature=2), r"Did you mean temperature\?$"),
        (lambda: LoraConfig(rnak=8), r"^lora: LoraConfig: unknown argument 'rnak';.* mean rank\?$"),
    ],
)  # fmt: skip
def test_unknown_arguments_of_the_constructors_are_named_with_those_that_were_meant(make, text):
    with pytest.raises(InvalidError, match=text):
        make()


def test_all_linear_may_stand_in_a_list():
    peft = pytest.importorskip("peft")
    for kind in (LoraConfig, peft.LoraConfig):
        config = LoraConfig.from_any(kind(target_modules=["all-linear"]))
        assert config.target_modules == "all-linear"


def test_the_longer_names_are_taken_by_the_constructors():
    assert SamplingParams(max_new_tokens=4) == SamplingParams(max_tokens=4)
    assert LoraConfig(rank=4) == LoraConfig(r=4) == LoraConfig.from_any({"rank": 4})
    assert "rank" not in LoraConfig(rank=4).to_dict()
    with pytest.raises(InvalidError, match="r is 4 and rank is 6, two names of one number"):
        LoraConfig(r=4, rank=6)
    assert (
        LoraConfig() == LoraConfig(r=8) == LoraConfig(r=8, rank=8) and type(LoraConfig().r) is int
    )
    for refused in (lambda: LoraConfig(r=8, rank=32), lambda: LoraConfig.from_any(
        {"r": 8, "rank": 32}
    )):  # fmt: skip
        with pytest.raises(InvalidError, match="r is 8 and rank is 32, two names of one number"):
            refused()
    with pytest.raises(InvalidError, match="max_tokens is 3 and max_new_tokens is 4, two names"):
        SamplingParams(max_tokens=3, max_new_tokens=4)
    with pytest.raises(InvalidError, match="max_new_tokens is 'x', it must be an integer"):
        SamplingParams(max_new_tokens="x")


def test_two_names_of_one_number_must_agree():
    assert SamplingParams.from_dict({"max_tokens": 3, "max_new_tokens": 3}).max_tokens == 3
    for given, other in ((3, 4), (None, 4), (3, None)):
        with pytest.raises(
            InvalidError, match=f"max_tokens is {given} and max_new_tokens is {other}, two names"
        ):
            SamplingParams.from_dict({"max_tokens": given, "max_new_tokens": other})
    with pytest.raises(InvalidError, match="max_new_tokens is 'many', it must be an integer"):
        SamplingParams.from_dict({"max_tokens": 3, "max_new_tokens": "many"})


def test_numbers_are_pythons_own_and_what_is_set_later_is_checked_when_it_is_used():
    params = SamplingParams(max_tokens=np.int32(5), temperature=np.float32(0.5), seed=2**64 - 1)
    assert [type(n) for n in (params.max_tokens, params.temperature)] == [int, float]
    assert params.for_engine(room=3)["max_tokens"] == 5 and params.seed == 2**64 - 1
    assert SamplingParams().for_engine(room=3, seed=7)["max_tokens"] == 3
    assert SamplingParams().for_engine(room=10**6, seed=7)["seed"] == 7
    params.min_p = 2
    with pytest.raises(InvalidError, match="min_p is 2, it must be a number of at least 0"):
        params.for_engine()


def test_to_transformers_speaks_its_language():
    greedy = SamplingParams(temperature=0.0).to_transformers()
    assert greedy["do_sample"] is False and greedy["max_new_tokens"] == 2048
    warm = SamplingParams(max_tokens=5, temperature=0.5, top_k=3, stop=["x"]).to_transformers("tok")
    assert warm["temperature"] == 0.5 and warm["top_k"] == 3 and warm["max_new_tokens"] == 5
    assert warm["min_p"] is None and SamplingParams(min_p=0.1).to_transformers()["min_p"] == 0.1
    assert warm["stop_strings"] == ["x"] and warm["tokenizer"] == "tok"
    assert SamplingParams(stop=[7]).to_transformers()["eos_token_id"] == [7]


def test_to_vllm_names_the_samples_n():
    assert SamplingParams(num_samples=2, stop="x").to_vllm(seed=1)["n"] == 2
    assert SamplingParams(stop="x").to_vllm()["stop"] == ["x"]
    assert SamplingParams(stop=[7]).to_vllm(n=3) == {
        "max_tokens": None, "seed": None, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "n": 3,
        "repetition_penalty": 1.0, "logprobs": None, "prompt_logprobs": None, "min_p": 0.0,
        "stop_token_ids": [7],
    }  # fmt: skip


def test_our_lora_config_has_pefts_defaults():
    peft = pytest.importorskip("peft")
    theirs = peft.LoraConfig().to_dict()
    ours = LoraConfig().to_dict()
    for name in ("r", "lora_alpha", "lora_dropout", "bias", "use_rslora", "target_modules"):
        assert ours[name] == theirs[name], name
    assert set(ours) == set(theirs)


def test_a_config_of_peft_is_accepted_equally():
    peft = pytest.importorskip("peft")
    fields = {"r": 4, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"], "use_rslora": True}
    ours, theirs = LoraConfig(**fields), LoraConfig.from_any(peft.LoraConfig(**fields))
    assert json.loads(ours.to_json()) == json.loads(theirs.to_json())
    assert LoraConfig.from_any(fields) == ours
    assert LoraConfig.from_any(ours) is ours


@pytest.mark.usefixtures("data_built")
def test_a_directory_of_peft_is_read(tmp_path):
    config = LoraConfig(r=3, target_modules=["q_proj"], rank_pattern={"b": 2, "a": 1})
    (tmp_path / "adapter_config.json").write_text(config.to_json())
    assert LoraConfig.from_any(tmp_path) == config
    assert LoraConfig.from_any(tmp_path).r == 3
    with pytest.raises(NotFoundError, match=r"no PEFT directory: adapter_config.json is missing"):
        LoraConfig.from_any(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"r": 8', "line 1 column 8: incomplete JSON"),
        (b'{"r": "\xff"}', "line 1 column 8: invalid UTF-8; save the file as UTF-8"),
        (b"[" * 100_000, "line 1 column 129: too deep"),
        (b"[1]", "must be a JSON object"),
    ],
    ids=["broken", "no UTF-8", "too deep", "no object"],
)
def test_a_file_that_is_no_config_is_named_with_the_cause(tmp_path, content, text):
    (tmp_path / "adapter_config.json").write_bytes(content)
    with pytest.raises(InvalidError, match=f"{tmp_path}/adapter_config.json {text}"):
        LoraConfig.from_any(tmp_path)


@pytest.mark.parametrize("value", [0, None, False, 1])
def test_an_unknown_field_is_refused_in_a_dict_and_where_it_is_set(tmp_path, value):
    with pytest.raises(InvalidError, match=r"unknown argument 'lora_dropuot'; it takes .*lora_dr"):
        LoraConfig.from_any({"lora_dropuot": value})

    class Newer:  # than the peft that we know
        peft_type = "LORA"

        def to_dict(self):
            fields = {"r": 4, "peft_type": self.peft_type, "target_modules": ["q_proj"]}
            return {**fields, "use_newest": value}

    (tmp_path / "adapter_config.json").write_text(json.dumps(Newer().to_dict()))
    for config, text in (
        (Newer(), "'use_newest' is 1, a feature of peft that Twinkle does not support"),
        (tmp_path, f"'use_newest' is {value}, a feature of peft that Twinkle does not support"),
    ):
        if value or (value == 0 and value is not False and config is tmp_path):
            with pytest.raises(InvalidError, match=text):
                LoraConfig.from_any(config)
        else:
            assert LoraConfig.from_any(config) == LoraConfig(r=4, target_modules=["q_proj"])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"r": 0}, "lora: r is 0, it must be an integer of at least 1"),
        ({"lora_alpha": 0}, "lora_alpha is 0"),
        ({"lora_dropout": 1.0}, "lora_dropout is 1, it must be a number of at least 0 and below 1"),
        ({"bias": "all"}, 'bias is "all"'),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save' is"),
        ({"init_lora_weights": "olora"}, 'init_lora_weights is "olora"'),
        ({"init_lora_weights": "pissa_niter_"}, 'init_lora_weights is "pissa_niter_"'),
        ({"use_dora": 1}, "use_dora is 1"),
        ({"ensure_weight_tying": True}, "ensure_weight_tying is true"),
        ({"layers_to_transform": [-1]}, "layers_to_transform is"),
        (
            {"layers_to_transform": 1, "target_modules": "q"},
            "'layers_to_transform' is 1, it must be null where target_modules is a text",
        ),
        ({"layers_pattern": "h"}, "'layers_pattern' is \"h\", it must be null without"),
        ({"exclude_modules": [1]}, "exclude_modules is"),
        ({"layer_replication": [[0, 2]]}, "'layer_replication' is"),
    ],
)
def test_wrong_lora_fields_are_named(fields, text):
    with pytest.raises(InvalidError, match=text):
        LoraConfig(**fields)


def test_what_peft_can_and_we_cannot_is_refused_by_name():
    peft = pytest.importorskip("peft")
    with pytest.raises(InvalidError, match="'lora_bias' is true, a feature of peft"):
        LoraConfig.from_any(peft.LoraConfig(target_modules=["q_proj"], lora_bias=True))
    with pytest.raises(InvalidError, match='\'peft_type\' is "IA3", it must be "LORA"'):
        LoraConfig.from_any({"peft_type": "IA3"})
    with pytest.raises(InvalidError, match="the config is a int"):
        LoraConfig.from_any(3)


def test_user_data_keeps_values_of_any_type():
    pairs = [("ground_truth", pack_value([1, "a"])), ("plain", "5 apples")]
    assert user_data_get(pairs, "ground_truth") == [1, "a"]
    assert user_data_get(pairs, "plain") == "5 apples"
    assert user_data_get(pairs, "absent", 3) == 3 and user_data_get(None, "absent") is None


def test_patterns_keep_their_order_since_the_first_that_matches_counts():
    ranks = {"layers.0.mlp.down_proj": 4, "down_proj": 8, "a_proj": 2}
    text = LoraConfig(rank_pattern=ranks, alpha_pattern=None).to_json()
    assert list(json.loads(text)["rank_pattern"]) == list(ranks)
    assert json.loads(text)["alpha_pattern"] == {}


@pytest.mark.parametrize("bad", [0, "", [], False, {"q_proj": 0}])
def test_a_pattern_that_is_no_dict_of_ranks_is_refused(bad):
    with pytest.raises(InvalidError, match=r"lora: rank_pattern is .*, it must be a dict"):
        LoraConfig(rank_pattern=bad)
