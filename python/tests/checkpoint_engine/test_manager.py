"""CheckpointEngineManager in one process."""

import gc
import itertools
import json
import weakref
from pathlib import Path

import pytest

from twinkle import LoraConfig
from twinkle.checkpoint_engine import (
    CheckpointEngine,
    CheckpointEngineManager,
    CheckpointEngineRegistry,
    GlooCheckpointEngine,
)
from twinkle.data_format import SamplingParams
from twinkle.errors import InvalidError, NotAvailableError
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler, vLLMSampler

pytestmark = pytest.mark.usefixtures("engine_built")

FEATURE = {"input_ids": [5, 6, 7, 8], "labels": [6, 7, 8, -100]}


@pytest.fixture
def model(tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.add_adapter_to_model("default", LoraConfig(r=4, target_modules="all-linear"))
    model.set_optimizer("AdamW", lr=0.1)
    return model


def test_after_a_sync_the_sampler_has_the_weights_of_the_last_step(model):
    sampler = vLLMSampler(model=model)
    manager = CheckpointEngineManager(model=model, sampler=sampler)
    params = SamplingParams(max_tokens=3, temperature=0, logprobs=1)
    seen = []
    for _ in range(2):
        for merge in (True, False):
            assert manager.sync_weights(merge_and_sync=merge) is None
            sampler.reset_prefix_cache()
        (reply,) = sampler.sample([{"input_ids": [5, 6, 7]}], params)[0].sequences
        tokens = list(reply.tokens)
        ids = [5, 6, 7, *tokens]
        labels = [-100, -100, *tokens, -100]
        logps = model.forward_only(inputs=[{"input_ids": ids, "labels": labels}])["logps"][0]
        assert [round(x, 4) for x in logps[2:5].tolist()] == [
            round(of_token[0][1], 4) for of_token in reply.logprobs
        ]
        seen.append(logps)
        for _ in range(3):
            model.forward_backward(inputs=[FEATURE])
            model.clip_grad_and_step()
    assert not seen[0].equal(seen[1])


def trained(directory, kind, steps=1):
    model = TransformersModel(model_id=directory)
    if kind == "adapter":
        model.add_adapter_to_model("default", LoraConfig(r=4, target_modules="all-linear"))
    model.set_optimizer("AdamW", lr=0.02)
    for _ in range(steps):
        train(model)
    return model


def train(model):
    model.forward_backward(inputs=[FEATURE])
    model.clip_grad_and_step()


def sampled(sampler, **more):
    params = SamplingParams(max_tokens=8, temperature=1.0, logprobs=1, seed=3)
    (reply,) = sampler.sample([{"input_ids": list(range(5, 50))}], params, **more)[0].sequences
    return list(reply.tokens), [of_token[0][1] for of_token in reply.logprobs]


@pytest.mark.parametrize("kind", ["adapter", "full"])
def test_a_sampler_with_an_engine_of_its_own_samples_the_models_bits(kind, tiny_llama_dir):
    model = trained(tiny_llama_dir, kind)
    shared = TorchSampler(model=model)
    own = TorchSampler(model_id=tiny_llama_dir, engine_args={"enable_lora": False})
    base = sampled(own)
    manager = CheckpointEngineManager(model=model, sampler=own, bucket_bytes="10KB")
    seen = [base]
    for _ in range(3):
        assert manager.sync_weights() is None
        assert sampled(own) == sampled(shared)
        seen.append(sampled(own))
        train(model)
        assert sampled(own) == seen[-1]  # until the next sync
    assert all(before != after for before, after in itertools.pairwise(seen))
    if kind == "adapter":
        assert sampled(own, use_base_model=True) == base  # nothing was merged into it
        assert sampled(own, adapter_name="default") == seen[-1]
        with pytest.raises(InvalidError, match="there is no adapter 'other'"):
            sampled(own, adapter_name="other")


def test_an_adapter_of_another_config_takes_the_place_of_the_one_before(tiny_llama_dir):
    model = trained(tiny_llama_dir, "adapter")
    own = TorchSampler(model_id=tiny_llama_dir)
    manager = CheckpointEngineManager(model=model, sampler=own)
    for rank in (4, 8, 2):
        model.remove_adapter("default")
        model.add_adapter_to_model("default", LoraConfig(r=rank, target_modules=["q_proj"]))
        model.set_optimizer("AdamW", lr=0.05)
        train(model)
        manager.sync_weights()
        assert sampled(own) == sampled(TorchSampler(model=model))
        manager.sync_weights()
    assert len(own.engine.stats()["tenants"]) == 2  # the base model's and the newest adapter's


def test_adapters_of_ranks_that_meet_anew_take_the_places_of_those_before(tiny_llama_dir):
    own = TorchSampler(model_id=tiny_llama_dir)
    adapter = json.dumps({"r": 4, "target_modules": ["q_proj"]})

    class Meeting:
        def finalize(self):
            pass

    for number in range(3):
        tenant = f"sync/{number}/1/default"

        def receive(engine, frozen, tenant=tenant):
            engine.create(tenant=tenant, lora_json=adapter).result()
            return {"tenant": tenant, "adapter_name": "default"}

        own._checkpoint_engine = Meeting()
        own._receive_by(receive, meets=True)
        assert sampled(own)
        own.finalize_checkpoint_engine()
    assert len(own.engine.stats()["tenants"]) == 2  # the base model's and the newest adapter's


def test_syncs_that_are_repeated_keep_no_old_weights(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=8192, hidden_size=256, intermediate_size=1024, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = trained(str(tmp_path), "full")
    manager = CheckpointEngineManager(model=model, sampler=TorchSampler(model_id=str(tmp_path)))

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(3):
        manager.sync_weights()
    before = resident()
    for _ in range(30):  # 8 MB each
        manager.sync_weights()
    assert resident() - before < 60e6


def test_a_sampler_of_another_model_is_refused_by_the_first_tensor(tiny_llama_dir, tmp_path):
    config = json.loads((Path(tiny_llama_dir) / "config.json").read_text())
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(**{**config, "intermediate_size": 192})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    model = trained(tiny_llama_dir, "adapter")
    other = TorchSampler(model_id=str(tmp_path))
    before = sampled(other)
    manager = CheckpointEngineManager(model=model, sampler=other)
    for _ in range(2):
        with pytest.raises(
            InvalidError, match=r"'model.layers.0.mlp.gate_proj.weight' is .*128, 64"
        ):
            manager.sync_weights()
    assert sampled(other) == before
    floats = TorchSampler(model_id=tiny_llama_dir, engine_args={"dtype": "float32"})
    with pytest.raises(InvalidError, match=r"BFloat16.* in the model, float .*one dtype"):
        CheckpointEngineManager(model=model, sampler=floats).sync_weights()


def test_what_an_engine_refuses_is_raised_as_it_is_and_the_next_sync_works(tiny_llama_dir):
    model = trained(tiny_llama_dir, "adapter")
    own = TorchSampler(model_id=tiny_llama_dir)
    manager = CheckpointEngineManager(model=model, sampler=own)
    for name in ("a", "b"):
        model.add_adapter_to_model(name, LoraConfig(r=2, target_modules=["q_proj"]))
    model.remove_adapter("default")
    with pytest.raises(InvalidError, match="pass adapter_name"):
        manager.sync_weights()
    model.remove_adapter("b")
    manager.sync_weights()
    assert sampled(own) == sampled(TorchSampler(model=model))


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_manager_and_its_model_end_where_their_script_drops_them(is_refused, tiny_llama_dir):
    """Not where garbage is collected, which is another place on each rank."""

    def used():
        model = trained(tiny_llama_dir, "adapter")
        own = TorchSampler(model_id=tiny_llama_dir)
        manager = CheckpointEngineManager(model=model, sampler=own)
        manager.sync_weights()
        if is_refused:
            for name in ("a", "b"):
                model.add_adapter_to_model(name, LoraConfig(r=2, target_modules=["q_proj"]))
            model.remove_adapter("default")
            try:
                manager.sync_weights()
            except InvalidError as error:
                assert "pass adapter_name" in str(error)
            else:
                pytest.fail("it was taken")
        return [weakref.ref(each) for each in (manager, model, model.engine, own, own.engine)]

    gc.disable()
    try:
        assert [of() for of in used()] == [None] * 5
    finally:
        gc.enable()


def test_registry_has_engines_by_name():
    class Mine(CheckpointEngine):
        pass

    CheckpointEngineRegistry.register("mine", Mine)
    assert isinstance(CheckpointEngineRegistry.new("mine"), Mine)
    assert CheckpointEngineRegistry.get("gloo") is GlooCheckpointEngine
    with pytest.raises(InvalidError, match="'mine' is Mine already"):
        CheckpointEngineRegistry.register("mine", GlooCheckpointEngine)
    with pytest.raises(InvalidError, match=r"there is no 'glo', there is .*Did you mean 'gloo'"):
        CheckpointEngineRegistry.new("glo")
    with pytest.raises(NotAvailableError, match="'nccl' is not in this version"):
        CheckpointEngineRegistry.new("nccl")
    with pytest.raises(InvalidError, match="engine_cls is"):
        CheckpointEngineRegistry.register("other", object)
    with pytest.raises(NotImplementedError, match="Mine does not define prepare"):
        Mine().prepare()
    senders, receivers = Mine.build_topology(2, 1, "host:1")
    assert [each["rank"] for each in senders + receivers] == [0, 1, 2]


def test_ranks_that_have_not_met_and_places_that_cannot_be_are_refused(tiny_llama_dir):
    own = TorchSampler(model_id=tiny_llama_dir)
    with pytest.raises(InvalidError, match="receive_weights needs init_checkpoint_process_group"):
        own.receive_weights()
    own.finalize_checkpoint_engine()
    with pytest.raises(InvalidError, match="address is 'nowhere', it must be 'HOST:PORT'"):
        own.init_checkpoint_process_group("nowhere", 1, 2, 1)
    for rank, size, senders, named in ((2, 2, 1, "rank"), (0, 1, 1, "world_size"),
                                       (1, 2, 2, "num_senders")):  # fmt: skip
        with pytest.raises(InvalidError, match=f"checkpoint_engine: {named} is"):
            own.init_checkpoint_process_group("127.0.0.1:9", rank, size, senders)
    with pytest.raises(InvalidError, match="the ranks have not met"):
        GlooCheckpointEngine().receive_weights(own.engine, "frozen")
    with pytest.raises(InvalidError, match="bucket_bytes is 0"):
        GlooCheckpointEngine(bucket_bytes=0)
    model = trained(tiny_llama_dir, "adapter", steps=0)
    with pytest.raises(InvalidError, match="send_weights needs init_checkpoint_process_group"):
        model.send_weights()
    with pytest.raises(InvalidError, match="model_keys is"):
        model.send_weights(model_keys=["a"])
    with pytest.raises(InvalidError, match="samples from its model="):
        CheckpointEngineManager(model=trained(tiny_llama_dir, "adapter", steps=0),
                                sampler=TorchSampler(model=model)).sync_weights()  # fmt: skip


def test_what_cannot_be_synced_is_refused_by_name(model, tiny_llama_dir):
    own = TorchSampler(model_id=tiny_llama_dir)
    with pytest.raises(InvalidError, match="sampler is None, it must be a TorchSampler"):
        CheckpointEngineManager(model=model, sampler=None)
    with pytest.raises(InvalidError, match="model is 'm', it must be a TransformersModel"):
        CheckpointEngineManager(model="m", sampler=own)
    sampler = TorchSampler(model=model)
    with pytest.raises(NotAvailableError, match="platform is 'NPU'"):
        CheckpointEngineManager(model=model, sampler=sampler, platform="NPU")
    manager = CheckpointEngineManager(model=model, sampler=sampler, platform=None)
    with pytest.raises(InvalidError, match="merge_and_sync is 1, it must be True or False"):
        manager.sync_weights(merge_and_sync=1)
