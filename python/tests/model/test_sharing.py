"""strategy, ddp_config and fsdp_config over several ranks: what they become, what is refused."""

import gc
import weakref

import pytest

from twinkle import DeviceMesh, LoraConfig, TransformersModel
from twinkle.errors import InvalidError, NotAvailableError, TwinkleError
from twinkle.model.sharing import sharing_options
from twinkle.sampler import TorchSampler

ALL = 1 << 50
SHARDED = DeviceMesh.from_sizes(fsdp_size=2)
HYBRID = DeviceMesh.from_sizes(fsdp_size=2, dp_size=2)
WHOLE = DeviceMesh.from_sizes(dp_size=2)
ALONE = DeviceMesh.from_sizes(dp_size=1, fsdp_size=1)
NAMES = ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")


def options(mesh, strategy="accelerate", ddp=None, **fsdp):
    return sharing_options(mesh, strategy, ddp, fsdp)


@pytest.mark.parametrize(
    ("mesh", "fsdp", "gathered"),
    [
        (SHARDED, {}, None),
        (SHARDED, {"gathered_bytes": 4096}, 4096),
        (SHARDED, {"reshard_after_forward": True}, None),
        (SHARDED, {"reshard_after_forward": False}, ALL),
        (SHARDED, {"sharding_strategy": "FULL_SHARD"}, None),
        (SHARDED, {"sharding_strategy": "SHARD_GRAD_OP"}, ALL),
        (SHARDED, {"sharding_strategy": 2}, ALL),
        (HYBRID, {"sharding_strategy": "HYBRID_SHARD"}, None),
        (HYBRID, {"sharding_strategy": "HYBRID_SHARD_ZERO2"}, ALL),
        (WHOLE, {"reshard_after_forward": False}, None),
        (None, {"reshard_after_forward": False}, None),
        *((ALONE, {"sharding_strategy": name}, None) for name in NAMES),
        *((None, {"sharding_strategy": name}, None) for name in NAMES),
        (WHOLE, {"forward_prefetch": None, "ddp": {"bucket_cap_mb": None}}, None),
        (WHOLE, {"sharding_strategy": None, "gathered_bytes": None}, None),
        (SHARDED, {"reshard_after_forward": None, "sharding_strategy": None}, None),
    ],
)
def test_torchs_words_become_the_bytes_that_stay_gathered(mesh, fsdp, gathered):
    want = {} if gathered is None else {"gathered_bytes": gathered}
    assert options(mesh, **fsdp) == want


@pytest.mark.parametrize(
    ("mesh", "given", "says"),
    [
        (SHARDED, {"strategy": "hope"}, "strategy is 'hope', it must be 'accelerate' or"),
        (WHOLE, {"strategy": "native_fsdp"}, "no ranks along fsdp: give them to fsdp_size"),
        (SHARDED, {"sharding_strategy": "NO_SHARD"}, "'NO_SHARD', it must be .* dp_size"),
        (SHARDED, {"sharding_strategy": True}, "sharding_strategy is True"),
        (SHARDED, {"sharding_strategy": []}, "sharding_strategy is"),
        (SHARDED, {"sharding_strategy": "HYBRID_SHARD"}, "no ranks along dp: give them to dp_size"),
        (SHARDED, {"reshard_after_forward": 2}, "reshard_after_forward is 2, it must be True or"),
        (
            SHARDED,
            {"gathered_bytes": -1},
            "gathered_bytes is -1, it must be an integer of at least",
        ),
        (SHARDED, {"gathered_bytes": 1, "reshard_after_forward": False}, "leave one out"),
        (SHARDED, {"cpu_offload": True}, "unknown argument 'cpu_offload'"),
        (SHARDED, {"ddp": {"bucket": 1}}, "unknown argument 'bucket'"),
    ],
)
def test_what_ranks_cannot_do_is_refused_by_name(mesh, given, says):
    with pytest.raises(InvalidError, match=says):
        options(mesh, **given)


@pytest.mark.parametrize("mesh", [None, ALONE, WHOLE, SHARDED, HYBRID])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sharding_strategy": "BOGUS"}, "sharding_strategy is 'BOGUS', it must be 'FULL_SHARD'"),
        ({"sharding_strategy": "NO_SHARD"}, "'NO_SHARD', it must be .* dp_size"),
        ({"gathered_bytes": -5}, "gathered_bytes is -5, it must be an integer of at least 0"),
        ({"gathered_bytes": 1, "reshard_after_forward": False}, "leave one out"),
        ({"reshard_after_forward": "maybe"}, "reshard_after_forward is 'maybe', it must be True"),
        ({"use_orig_params": "yes"}, "fsdp_config: use_orig_params is 'yes', it must be True or F"),
        ({"ddp": {"find_unused_parameters": "banana"}}, "ddp_config: find_unused_parameters is 'b"),
        ({"ddp": {"bucket_cap_mb": 0}}, "bucket_cap_mb is 0, it must be a number above 0"),
    ],
)
def test_values_that_are_never_right_are_refused_on_any_mesh(mesh, given, says):
    with pytest.raises(InvalidError, match=says):
        options(mesh, **given)


@pytest.mark.parametrize("strategy", [*NAMES, 1, 2, 4, 5])
def test_ranks_that_shard_nothing_refuse_a_strategy_of_shards(strategy):
    with pytest.raises(InvalidError, match=r"but device_mesh has no ranks along fsdp: give them"):
        options(WHOLE, sharding_strategy=strategy)


def test_experts_in_parallel_are_refused_on_any_mesh_but_not_those_of_one_rank():
    with pytest.raises(NotAvailableError, match="as they share other weights"):
        options(SHARDED, expert_parallel={"ep_size": 2})
    with pytest.raises(InvalidError, match="expert_parallel: ep_size is 0, it must be an integer"):
        options(SHARDED, expert_parallel={"ep_size": 0})
    with pytest.raises(InvalidError, match="expert_parallel is True, it must be a dict"):
        options(SHARDED, expert_parallel=True)
    plain = options(SHARDED)
    for experts in ({"enabled": True, "router_dtype": "fp32"}, {"enabled": True, "ep_size": 1}):
        assert options(SHARDED, expert_parallel=experts) == plain


def test_what_only_tunes_other_engines_is_told(logged):
    del logged[:]
    options(SHARDED, ddp={"bucket_cap_mb": 25}, forward_prefetch=True, gathered_bytes=0)
    assert logged == [
        "model: bucket_cap_mb of ddp_config, forward_prefetch of fsdp_config change nothing here: "
        "ranks have one way to share a model, docs/parallel.md"
    ]


class MadeError(Exception):
    pass


def test_the_engine_is_made_with_the_bytes_that_stay_gathered(tmp_path, monkeypatch):
    def engine(*_, **kwargs):
        raise MadeError(kwargs.get("gathered_bytes"))

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("twinkle.model.transformers_model.Engine", engine)
    for fsdp_config, gathered in (({"gathered_bytes": 4096}, 4096), (None, None)):
        with pytest.raises(MadeError) as made:
            TransformersModel(str(tmp_path), device_mesh=SHARDED, fsdp_config=fsdp_config)
        assert made.value.args == (gathered,)


def refused(call, given):
    try:
        call(**given)
    except TwinkleError:
        return
    raise AssertionError(f"{call.__name__} takes {given}")


def test_a_model_ends_where_its_script_drops_it(tiny_llama_dir):
    """Not where garbage is collected, which is another place on each rank: ranks wait for each
    other at the end of an engine."""
    rows = [{"input_ids": [5, 6, 7], "labels": [6, 7, 8]}]

    def used():
        model = TransformersModel(model_id=tiny_llama_dir)
        model.add_adapter_to_model("default", LoraConfig(r=2, target_modules="all-linear"))
        model.set_optimizer("SGD", lr=0.1)
        model.forward_backward(inputs=rows)
        model.clip_grad_and_step()
        sampler = TorchSampler(model=model)
        sampler.sample(rows, max_tokens=1, adapter_name="default")
        for call, given in (
            (model.forward_backward, {"inputs": None}),
            (model.forward_only, {"inputs": rows, "adapter_name": "other"}),
            (model.calculate_loss, {}),
            (model.step, {"optim_params": 1}),
            (model.set_optimizer, {"optimizer_cls": "Nope"}),
            (model.add_adapter_to_model, {"adapter_name": "more", "config_or_dir": "/nowhere"}),
            (model.save, {"name": "../other"}),
            (model.load, {"name": "/nowhere"}),
            (sampler.sample, {"inputs": rows, "max_tokens": -1}),
        ):
            refused(call, given)
        return weakref.ref(model), weakref.ref(model.engine)

    gc.disable()
    try:
        assert [of() for of in used()] == [None, None]
    finally:
        gc.enable()
