"""TorchSampler and vLLMSampler over a fake engine (a bigram model)."""

import os
import shutil
from queue import SimpleQueue

import numpy as np
import pytest

from twinkle import InvalidError, LoraConfig
from twinkle.data_format import SamplingParams
from twinkle.model import TransformersModel
from twinkle.sampler import Sampler, TorchSampler, vLLMSampler
from twinkle.without_effect import WITHOUT_EFFECT

ROW = {"messages": [{"role": "user", "content": "abc"}, {"role": "user", "content": "ab"}]}


@pytest.fixture
def make(fake_core, tmp_path):
    return lambda cls=TorchSampler, **kwargs: cls(model_id=str(tmp_path), **kwargs)


def greedy(engine, token, count):
    out = []
    for _ in range(count):
        token = int(engine.base[token].argmax())
        out.append(token)
    return out


@pytest.mark.parametrize("cls", [TorchSampler, vLLMSampler])
def test_one_response_per_prompt_with_tokens_logprobs_text_and_feature(make, cls):
    sampler = make(cls)
    sampler.set_template("Template")
    assert sampler.reset_prefix_cache() is True
    assert sampler.engine.calls[-1] == ("reset_prefix_cache",)
    params = SamplingParams(max_tokens=3, num_samples=2, logprobs=1)
    responses = sampler.sample([ROW, {"input_ids": [5, 4]}], params)
    assert len(responses) == 2 and responses[0].prompt_token_ids == [3, 2]
    for response, last in zip(responses, (2, 4), strict=True):
        assert len(response.sequences) == 2
        sequence = response.sequences[0]
        assert sequence.tokens == greedy(sampler.engine, last, 3)
        assert [pair[0][0] for pair in sequence.logprobs] == sequence.tokens
        assert all(isinstance(pair[0][1], float) for pair in sequence.logprobs)
        assert sequence.stop_reason == "length"
        assert sequence.decoded == " ".join(map(str, sequence.tokens))
        assert list(sequence.new_input_feature["input_ids"])[2:] == sequence.tokens


def test_logprobs_are_only_given_when_asked_for(make):
    (response,) = make().sample({"input_ids": [1]}, {"max_tokens": 1})
    assert response.sequences[0].logprobs is None


def test_return_encoded_gives_features_and_texts_where_the_prompts_are_tokens(make):
    feature, params = {"input_ids": [5, 4], "id": 7}, {"max_tokens": 2}
    sequence = make().sample(feature, params)[0].sequences[0]
    assert sequence.new_input_feature is None and sequence.decoded is None
    sequence = make().sample(feature, params, return_encoded=True)[0].sequences[0]
    assert sequence.new_input_feature["input_ids"] == [5, 4, *sequence.tokens]
    assert sequence.new_input_feature["id"] == 7
    assert sequence.decoded == " ".join(map(str, sequence.tokens))


def test_without_a_seed_every_prompt_of_every_call_draws_its_own(make):
    sampler = make()
    for _ in range(2):
        sampler.sample([{"input_ids": [1]}] * 3, {"max_tokens": 1})
    seeds = [p["seed"] for call in sampler.engine.calls if call[0] == "sample" for p in call[2]]
    assert len(set(seeds)) == 6
    sampler.sample([{"input_ids": [1]}] * 2, {"max_tokens": 1, "seed": 7})
    assert [p["seed"] for p in sampler.engine.calls[-1][2]] == [7, 7]


def test_prompts_are_scored_without_sampling(make):
    sampler = make()
    (response,) = sampler.sample({"input_ids": [1, 2]}, {"max_tokens": 0, "prompt_logprobs": 1})
    expected = sampler.engine.base[1].log_softmax(-1)[2]
    (sequence,) = response.sequences
    assert (sequence.tokens, sequence.logprobs, sequence.decoded) == ([], None, None)
    assert sequence.new_input_feature == {"input_ids": [1, 2]}
    assert response.prompt_logprobs[0] is None
    assert response.prompt_logprobs[1] == pytest.approx(float(expected), rel=1e-5)
    assert response.topk_prompt_logprobs is None
    (response,) = sampler.sample({"input_ids": [1, 2]}, {"max_tokens": 0})
    assert response.prompt_logprobs is None
    long = make(engine_args={"max_model_len": 3})
    (response,) = long.sample({"input_ids": [1, 2, 3]}, {"max_tokens": 0, "prompt_logprobs": 3})
    rows = sampler.engine.base.log_softmax(-1)
    assert response.prompt_logprobs[0] is None and response.topk_prompt_logprobs[0] is None
    for token, own, top in zip((1, 2), *(x[1:] for x in (
        response.prompt_logprobs, response.topk_prompt_logprobs)), strict=True):  # fmt: skip
        values, tokens = rows[token].topk(3)
        assert own == pytest.approx(float(rows[token, token + 1]))
        assert top == list(zip(tokens.tolist(), values.tolist(), strict=True))


def test_a_scored_conversation_comes_back_as_it_was_encoded_ready_to_be_trained_on(make):
    """As a teacher's in ModelScope's cookbook, rl/gkd/gkd_off_policy.py."""
    sampler = make(engine_args={"logprobs_mode": "raw_logprobs", "max_logprobs": 64})
    sampler.set_template("Template")
    row = {"messages": [*ROW["messages"], {"role": "assistant", "content": "ba"}]}
    params = SamplingParams(max_tokens=0, temperature=1.0, prompt_logprobs=2, num_samples=1)
    (response,) = sampler.sample([row], params)
    (sequence,) = response.sequences
    expected = sampler.template.encode(row)
    assert set(sequence.new_input_feature) == set(expected)
    for name in ("input_ids", "labels"):
        assert list(sequence.new_input_feature[name]) == list(expected[name])
    assert len(response.topk_prompt_logprobs) == len(expected["input_ids"])


def test_more_than_one_logprob_is_the_likeliest_and_the_tokens_own(make, monkeypatch):
    sampler = make()
    (response,) = sampler.sample({"input_ids": [1]}, {"max_tokens": 2, "logprobs": 3})
    for own, pairs in zip(
        response.sequences[0].tokens, response.sequences[0].logprobs, strict=True
    ):
        assert len(pairs) == 3 and pairs[0][0] == own  # the fake is greedy
        assert pairs == sorted(pairs, key=lambda pair: -pair[1])
    item = {"tokens": [9], "logprobs": [-3.0], "stop_reason": "length", "matched": "",
            "top_logprobs": [[(4, -0.5), (5, -1.0)]]}  # fmt: skip
    monkeypatch.setattr(sampler.engine, "sample", lambda **_: type(
        "Done", (), {"result": lambda self: [[item]]})())  # fmt: skip
    (response,) = sampler.sample({"input_ids": [1]}, {"max_tokens": 1, "logprobs": 2})
    assert response.sequences[0].logprobs == [[(4, -0.5), (5, -1.0), (9, -3.0)]]


def test_without_max_tokens_replies_may_fill_the_models_length(make):
    sampler = make(engine_args={"max_model_len": 20})
    sampler.sample({"input_ids": [1, 2]})
    assert sampler.engine.calls[-1][2][0]["max_tokens"] == 18


def test_a_sampler_of_a_model_samples_what_is_trained(fake_core, tmp_path):
    model = TransformersModel(model_id=str(tmp_path))
    model.add_adapter_to_model("default", LoraConfig(r=2))
    sampler = vLLMSampler(model=model)
    assert sampler.engine is model.engine
    sampler.sample({"input_ids": np.array([1])}, {"max_tokens": 1})
    assert model.engine.calls[-1][1] == "adapter/default"
    sampler.sample({"input_ids": [1]}, {"max_tokens": 1}, use_base_model=True)
    assert model.engine.calls[-1][1] == "frozen"
    with pytest.raises(InvalidError, match="there is no adapter 'nobody'"):
        sampler.sample({"input_ids": [1]}, {"max_tokens": 1}, adapter_name="nobody")


@pytest.mark.parametrize(
    ("precision", "taken"), [("bf16", "auto, bfloat16"), ("no", "auto, float32, float")]
)
def test_a_sampler_of_a_model_takes_the_models_dtype_alone(fake_core, tmp_path, precision, taken):
    model = TransformersModel(model_id=str(tmp_path), mixed_precision=precision)
    for dtype in (None, *taken.split(", ")):
        TorchSampler(model=model, engine_args={"dtype": dtype})
    for dtype in {"float16", "bfloat16", "float32", "float", "int8"} - set(taken.split(", ")):
        text = f"dtype is '{dtype}', it must be one of {taken}, since the model's mixed_precision"
        with pytest.raises(InvalidError, match=text):
            TorchSampler(model=model, engine_args={"dtype": dtype})


def test_adapters_from_directories_are_kept_up_to_max_loras(make, tmp_path):
    sampler = make(engine_args={"max_loras": 2})
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    for name in ("a", "b", "a", "c"):
        sampler.sample({"input_ids": [1]}, {"max_tokens": 1}, adapter_path=tmp_path / name)
    assert [call for call in sampler.engine.calls if call[0] == "create"] == [
        ("create", f"sampler/{sampler._name}/{i}/{tmp_path / n}")
        for i, n in ((0, "a"), (1, "b"), (2, "c"))
    ]
    assert len(sampler.engine.tenants) == 2
    sampler.shutdown()
    assert not sampler.engine.tenants


def test_samplers_of_one_engine_load_the_same_adapter_without_a_clash(fake_core, tmp_path):
    model = TransformersModel(model_id=str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "adapter_config.json").write_text("{}")
    for sampler in (TorchSampler(model=model), vLLMSampler(model=model)):
        sampler.sample({"input_ids": [1]}, {"max_tokens": 1}, adapter_path=tmp_path / "a")
    assert len(model.engine.tenants) == 2


def test_an_adapter_that_was_saved_again_is_loaded_anew(make, tmp_path):
    def sample():
        sampler.sample({"input_ids": [1]}, {"max_tokens": 1}, adapter_path=tmp_path / "a")
        return len([call for call in sampler.engine.calls if call[0] == "create"])

    sampler, directory = make(), tmp_path / "a"
    directory.mkdir()
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(b"one")
    assert [sample(), sample()] == [1, 1]
    (directory / "adapter_model.safetensors").write_bytes(b"three")
    assert [sample(), sample()] == [2, 2]
    stat = (directory / "adapter_config.json").stat()
    os.utime(directory / "adapter_config.json", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert sample() == 3
    directory.rename(tmp_path / "old")  # as a save does: a new directory in its place
    shutil.copytree(tmp_path / "old", directory)  # same sizes and times
    assert [sample(), sample()] == [4, 4]
    assert len(sampler.engine.tenants) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"engine_args": {"warp_speed": 9}}, "engine_args: unknown argument 'warp_speed'"),
        ({"colour": 1}, "unknown argument 'colour'"),
        ({"engine_args": {"max_model_len": 33}}, "max_model_len is 33, it must be from 1 to 32"),
        ({"engine_args": {"tensor_parallel_size": 2}}, "tensor_parallel_size is 2"),
        ({"engine_args": {"quantization": "awq"}}, "quantization is 'awq'"),
        ({"engine_args": {"dtype": "int8"}}, "dtype is 'int8'"),
        ({"engine_args": [1]}, r"engine_args is \[1\], it must be a dict"),
        ({"engine_args": {"max_loras": -1}}, "max_loras is -1, it must be an integer of at least"),
        ({"engine_args": {"max_loras": "2"}}, "max_loras is '2', it must be an integer of at"),
        ({"engine_args": {"max_model_len": 0}}, "max_model_len is 0, .* at least 1"),
        ({"engine_args": {"seed": "x"}}, "seed is 'x', it must be an integer"),
    ],
)
def test_wrong_constructor_arguments_are_named(make, arguments, text):
    with pytest.raises(InvalidError, match=text):
        make(**arguments)


def test_the_engine_arguments_of_the_documents_are_accepted(make):
    make(engine_args={"gpu_memory_utilization": 0.8, "max_model_len": 32, "max_lora_rank": 32,
                      "enable_lora": False})  # fmt: skip
    with pytest.raises(InvalidError, match="model_id or model is missing"):
        TorchSampler()


def test_vllms_names_reach_the_engine_under_its_own(make, logged):
    given = {"max_num_seqs": 5, "max_num_batched_tokens": 64, "enforce_eager": True,
             "gpu_memory_utilization": 0.8, "enable_prefix_caching": False}  # fmt: skip
    assert make(engine_args=given).engine.options == {
        "max_sequences": 5, "prefill_tokens": 64, "decode_graphs": False, "memory_share": 0.8,
        "prefix_cache": False,
    }  # fmt: skip
    assert make(engine_args={"kv_tokens": 4096}).engine.options == {"kv_tokens": 4096}
    make(engine_args={"enable_tower_connector_lora": False, "enable_lora": True})
    inert = WITHOUT_EFFECT["vLLMSampler: engine_args"]
    assert make(engine_args=dict.fromkeys(inert, 4)).engine.options == {}
    assert logged == []
    make(engine_args={"enable_tower_connector_lora": True, "enable_lora": True})
    (told,) = logged  # it asks for nothing that there is, and an adapter that it is for is refused
    assert "enable_tower_connector_lora is True, but only a model's text" in told


def test_where_the_engine_is_the_models_its_options_are_refused(fake_core, tmp_path):
    model = TransformersModel(model_id=str(tmp_path), max_sequences=5)
    assert model.engine.options["max_sequences"] == 5
    with pytest.raises(InvalidError, match=r"max_num_seqs of engine_args .* max_sequences=5"):
        TorchSampler(model=model, engine_args={"max_num_seqs": 5})
    with pytest.raises(InvalidError, match=r"'max_sequence'.* Did you mean max_sequences"):
        TransformersModel(model_id=str(tmp_path), max_sequence=5)


def test_an_adapter_is_refused_where_engine_args_says_that_there_is_none(make, tmp_path):
    sampler = make(engine_args={"enable_lora": False})
    with pytest.raises(InvalidError, match=r"adapter_path is given, .* enable_lora=False"):
        sampler.sample({"input_ids": [1]}, {"max_tokens": 1}, adapter_path=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_num_seqs": -5}, "max_num_seqs is -5, it must be an integer of at least 1"),
        ({"max_num_seqs": "x"}, "max_num_seqs is 'x', it must be an integer"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0, it must be"),
        ({"gpu_memory_utilization": "lots"}, "gpu_memory_utilization is 'lots', it must be a num"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5, it must be .* at most 1"),
        ({"enforce_eager": "maybe"}, "enforce_eager is 'maybe', it must be True or False"),
        ({"max_logprobs": 129}, "max_logprobs is 129, it must be an integer .*, at most 128"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching is 1, it must be True or False"),
        ({"max_num_seqs": 5, "max_sequences": 5}, "max_num_seqs and max_sequences are the same"),
        ({"num_gpu_blocks_override": 9}, "num_gpu_blocks_override .* use kv_tokens, in tokens"),
        ({"max_num_seq": 5}, "unknown argument 'max_num_seq'.* Did you mean max_num_seqs"),
        ({"load_format": "dummy"}, "load_format is 'dummy', it must be 'auto' or 'safetensors'"),
        ({"model": "other/model"}, "model of engine_args is 'other/model', but model_id is"),
        ({"max_lora_rank": -1}, "max_lora_rank is -1, it must be an integer of at least 1"),
        ({"seed": 2**70}, "seed is .*, it must be an integer of at least 0, at most"),
        ({"cpu_offload_gb": 4}, "cpu_offload_gb is 4, it must be 0, since weights are in the dev"),
        ({"logprobs_mode": "raw_logits"}, "logprobs_mode is 'raw_logits', this version gives log"),
        ({"logprobs_mode": "best"}, "logprobs_mode is 'best', it must be 'raw_logprobs' or 'pro"),
    ],
)  # fmt: skip
def test_wrong_engine_arguments_are_named(make, arguments, text):
    with pytest.raises((InvalidError, ImportError), match=text):
        make(engine_args=arguments)


def test_a_load_format_that_the_model_is_not_of_is_named(fake_core, tmp_path):
    with pytest.raises(InvalidError, match=r"load_format is 'safetensors', but model_id is .*gguf"):
        TorchSampler(model_id=str(tmp_path / "m.gguf"), engine_args={"load_format": "safetensors"})


def test_a_higher_rank_than_max_lora_rank_is_refused(make, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "adapter_config.json").write_text('{"r": 8}')
    sampler = make(engine_args={"max_lora_rank": 4})
    with pytest.raises(InvalidError, match="has a higher rank than max_lora_rank, 4"):
        sampler.sample({"input_ids": [1]}, {"max_tokens": 1}, adapter_path=tmp_path / "a")


@pytest.mark.parametrize(
    ("mode", "right", "wrong", "text"),
    [
        ("raw_logprobs", {"temperature": 1.0, "top_k": 3}, {"temperature": 0.7}, "temperature is"),
        ("processed_logprobs", {"temperature": 0.7}, {"top_p": 0.9}, "top_p is 0.9, but log-prob"),
    ],
)
def test_logprobs_are_those_of_logprobs_mode_or_refused(make, mode, right, wrong, text):
    sampler = make(engine_args={"logprobs_mode": mode})
    sampler.sample({"input_ids": [1]}, {"max_tokens": 1, "logprobs": 1, **right})
    sampler.sample({"input_ids": [1]}, {"max_tokens": 1, **wrong})  # gives none
    with pytest.raises(InvalidError, match=f"logprobs_mode is '{mode}' and {text}"):
        sampler.sample({"input_ids": [1]}, {"max_tokens": 1, "logprobs": 1, **wrong})


def test_sampling_parameters_may_be_given_by_name(make):
    sampler, feature = make(), {"input_ids": [1]}
    (by_name,) = sampler.sample(feature, max_tokens=3, temperature=0)
    (as_dict,) = sampler.sample(feature, {"max_tokens": 3, "temperature": 0})
    assert by_name.sequences[0].tokens == as_dict.sequences[0].tokens
    assert len("".join(text for text, _ in sampler.sample_stream(feature, max_new_tokens=2))) > 0
    with pytest.raises(InvalidError, match="max_tokens is given next to sampling_params: put it"):
        sampler.sample(feature, {"temperature": 0}, max_tokens=3)
    with pytest.raises(InvalidError, match=r"unknown argument 'max_token'; .* mean max_tokens"):
        sampler.sample(feature, max_token=3)


@pytest.mark.parametrize(
    ("params", "kwargs", "text"),
    [
        ({"max_tokens": 40}, {}, "prompt 0 has 1 tokens and max_tokens is 40, together they must"),
        (
            {"logprobs": 129},
            {},
            "logprobs is 129, it must be an integer of at least 0, at most 128",
        ),
        (5, {}, "sampling_params is 5, it must be SamplingParams or a dict"),
        ({"stop": [2**40]}, {}, r"stop\[0\] is 1099511627776, it must be from 0 to 2147483647"),
        ({"stop": [7, -1]}, {}, r"stop\[1\] is -1, it must be from 0 to 2147483647"),
        ({"top_k": 2**40}, {}, "top_k is 1099511627776, it must be .* -1, at most 2147483647"),
        ({"top_k": 2**70}, {}, "top_k is .*, it must be an integer of at least -1, at most"),
        (
            {"num_samples": 2**40},
            {},
            "num_samples is .*, it must be an integer of at least 1, at most 65536",
        ),
        ({"warmth": 5}, {}, "sampler: SamplingParams: unknown argument 'warmth'; it takes"),
        ({}, {"return_encoded": 1}, "return_encoded is 1, it must be True or False"),
        ({}, {"adapter_name": "x"}, "there is no adapter 'x'; pass model="),
    ],
)
def test_wrong_requests_are_named(make, params, kwargs, text):
    with pytest.raises((InvalidError, ImportError), match=text):
        make().sample({"input_ids": [1]}, params, **kwargs)


def test_a_sampler_of_ones_own_only_needs_sample():
    class Echo(Sampler):
        def sample(self, inputs, sampling_params=None, **kwargs):
            return inputs

    assert Echo().sample([1]) == [1]
    with pytest.raises(NotImplementedError, match="Sampler does not define sample"):
        Sampler().sample([])
    with pytest.raises(ImportError, match="add_adapter_to_sampler is not available"):
        Sampler().add_adapter_to_sampler("a", None)
    with pytest.raises(ImportError, match="apply_patch is not available"):
        Sampler().apply_patch("x")
    for name in ("get_state_keys", "receive_weights"):
        with pytest.raises(ImportError, match=f"sampler: {name} is not available"):
            getattr(Sampler(), name)()
    with pytest.raises(ImportError, match=r"Echo keeps .* TorchSampler\(model_id='there'\)"):
        Echo().load_full_weights_from_path("there")


def test_a_stream_goes_into_a_queue_and_ends_with_none(make):
    sampler, queue = make(), SimpleQueue()
    params = {"max_tokens": 5, "temperature": 0}
    (response,) = sampler.sample(ROW, params)
    sampler.sample_stream_to_queue(queue, ROW, params)
    *deltas, end = (queue.get(timeout=1) for _ in range(queue.qsize()))
    assert end is None and [reason for _, reason in deltas][-1] == "length"
    decoded = sampler.decode_response(response.sequences[0].tokens)
    assert "".join(text for text, _ in deltas) == decoded
    with pytest.raises(InvalidError, match="num_samples is 2, sample_stream takes 1"):
        sampler.sample_stream_to_queue(queue, ROW, {"num_samples": 2})
    assert queue.get(timeout=1) is None, "or who reads would wait for ever"
    with pytest.raises(InvalidError, match=r"queue is \[\], it must be a queue"):
        sampler.sample_stream_to_queue([], ROW)


@pytest.mark.usefixtures("engine_built")
def test_full_weights_from_a_path_are_those_of_a_sampler_of_their_own(tiny_llama_dir, tmp_path):
    transformers = pytest.importorskip("transformers")
    other = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    other.lm_head.weight.data.copy_(other.lm_head.weight.data.flip(0))
    other.save_pretrained(tmp_path / "other")
    shutil.copytree(tiny_llama_dir, tmp_path / "whole")
    shutil.copytree(tmp_path / "other", tmp_path / "whole", dirs_exist_ok=True)
    params = {"max_tokens": 6, "temperature": 0, "logprobs": 1}

    def sampled(sampler):
        (response,) = sampler.sample({"input_ids": [5, 6, 7]}, params)
        return response.sequences[0].logprobs

    sampler = TorchSampler(model_id=tiny_llama_dir)
    before = sampled(sampler)
    with pytest.raises(FileNotFoundError):
        sampler.load_full_weights_from_path(tmp_path / "nowhere")
    assert sampled(sampler) == before
    sampler.load_full_weights_from_path(tmp_path / "whole")
    after = sampled(sampler)
    assert after == sampled(TorchSampler(model_id=str(tmp_path / "whole"))) != before


def test_full_weights_are_refused_where_a_model_is_shared_or_they_do_not_fit(
    make, fake_core, tmp_path, monkeypatch
):
    shared = TorchSampler(model=TransformersModel(model_id=str(tmp_path)))
    with pytest.raises(InvalidError, match="this sampler samples from its model="):
        shared.load_full_weights_from_path(tmp_path)
    sampler = make()
    engine, model_info = sampler.engine, sampler.engine.model_info()
    with pytest.raises(InvalidError, match="sampler: path is 5, it must be a path"):
        sampler.load_full_weights_from_path(5)
    for name, value in (("vocab_size", 7), ("max_positions", 31)):
        other = {**model_info, name: value}
        monkeypatch.setattr(
            fake_core.Engine,
            "model_info",
            lambda self, o=other: model_info if self is engine else o,
        )
        with pytest.raises(
            InvalidError, match=f"{value} .*it must have .*, and at least 32, which"
        ):
            sampler.load_full_weights_from_path(tmp_path)
        assert sampler.engine is engine
