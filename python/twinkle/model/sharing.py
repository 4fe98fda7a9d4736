"""How several ranks share a model: strategy, ddp_config and fsdp_config as the engine's options."""

from twinkle import checks
from twinkle.errors import NotAvailableError, refuse_unknown, require
from twinkle.logger import get_logger
from twinkle.without_effect import WITHOUT_EFFECT

_HONOURED = ("expert_parallel", "gathered_bytes", "reshard_after_forward", "sharding_strategy")
# Those without effect, and so are the honoured ones on a mesh that has no ranks along fsdp.
_FIELDS = {
    "ddp_config": tuple(WITHOUT_EFFECT["ddp_config"]),
    "fsdp_config": (*WITHOUT_EFFECT["fsdp_config"], *_HONOURED),
}
# A value of these is a flag, or None.
_FLAGS = (
    "broadcast_buffers", "check_reduction", "cpu_ram_efficient_loading", "find_unused_parameters",
    "forward_prefetch", "gradient_as_bucket_view", "init_sync", "limit_all_gathers",
    "static_graph", "sync_module_states", "use_orig_params")  # fmt: skip
_ALL = 1 << 50  # as the engine's largest
# torch's names and accelerate's numbers: whether layers stay gathered after a forward, and whether
# the mesh needs dp.
_STRATEGIES = {
    "FULL_SHARD": (False, False), "SHARD_GRAD_OP": (True, False), "HYBRID_SHARD": (False, True),
    "HYBRID_SHARD_ZERO2": (True, True), "_HYBRID_SHARD_ZERO2": (True, True),
    1: (False, False), 2: (True, False), 4: (False, True), 5: (True, True),
}  # fmt: skip


def sharing_options(mesh, strategy, ddp_config, fsdp_config):
    """The engine's options that a model's arguments ask for; what changes nothing is told once.

    mesh: the model's, or None. InvalidError: an unknown strategy, a config that is no dict, a field
    that is unknown or has another kind of value, which is looked at on any mesh, or one that a mesh
    of several ranks contradicts. NotAvailableError: experts in parallel."""
    checks.one_of("model: strategy", strategy, ("accelerate", "native_fsdp"))
    given = {"ddp_config": ddp_config, "fsdp_config": fsdp_config}
    given = {name: _checked(name, config) for name, config in given.items()}
    sizes = ("world_size", "fsdp_world_size", "dp_world_size")
    ranks, fsdp, dp = (getattr(mesh, size, None) or 1 for size in sizes)
    config = {field: value for field, value in given["fsdp_config"].items() if value is not None}
    shards, what = config.get("sharding_strategy", "FULL_SHARD"), "fsdp_config: sharding_strategy"
    if isinstance(shards, bool) or shards not in list(_STRATEGIES):
        must = "'FULL_SHARD', 'SHARD_GRAD_OP', 'HYBRID_SHARD' or 'HYBRID_SHARD_ZERO2'"
        must += "; ranks that shard nothing are those of dp_size"
        checks.refuse(f"model: {what}", shards, must)
    stays, is_hybrid = _STRATEGIES[shards]
    for is_wanted, name, value, axis, size in (
        (strategy == "native_fsdp", "strategy", strategy, "fsdp", fsdp),
        ("sharding_strategy" in config, what, shards, "fsdp", fsdp),
        (is_hybrid, what, shards, "dp", dp),
    ):
        require(  # one process takes what is right for several
            not is_wanted or ranks == 1 or size > 1,
            f"model: {name} is {value!r}, but device_mesh has no ranks along {axis}: give them to "
            f"{axis}_size, or leave {name} out",
        )
    least = _gathered_bytes(config, stays)
    honoured = _HONOURED if fsdp > 1 else ()
    inert = [
        f"{field} of {name}" for name, config in given.items() for field in config
        if field not in honoured
    ]  # fmt: skip
    why = "they say how several devices share a model, and it runs on one"
    if ranks > 1:
        why = "ranks have one way to share a model, docs/parallel.md"
    get_logger().info_if(f"model: {', '.join(inert)} change nothing here: {why}", inert)
    return {"gathered_bytes": least} if least and fsdp > 1 else {}


def _checked(name, config):
    config = checks.mapping(f"model: {name}", config, none=True)
    refuse_unknown(f"model: {name}", config, _FIELDS[name])
    what = f"model: {name}: expert_parallel"
    experts = checks.mapping(what, config.get("expert_parallel"), none=True)
    ranks = checks.integer(f"{what}: ep_size", experts.get("ep_size"), least=1, none=True)
    if experts.get("enabled", True) and (ranks or 1) > 1:  # one rank has all experts anyway
        raise NotAvailableError(
            f"model: {name}: expert_parallel is {experts!r}, but ranks share the experts of a "
            "mixture as they share other weights, by dp_size and fsdp_size: leave it out"
        )
    for field, value in config.items():
        if value is not None and field in _FLAGS:
            checks.flag(f"model: {name}: {field}", value)
        if value is not None and field == "bucket_cap_mb":
            checks.number(f"model: {name}: bucket_cap_mb", value, above=0)
    return config


def _gathered_bytes(config, stays):
    """That the engine keeps of layers at least; stays: as the strategy has it after a forward."""
    what = "model: fsdp_config: reshard_after_forward"
    reshard = checks.flag(what, config.get("reshard_after_forward", not stays))
    require(
        "gathered_bytes" not in config or reshard,
        "model: fsdp_config: gathered_bytes is given, but layers that are not resharded after a "
        "forward all stay: leave one out",
    )
    what, least = "model: fsdp_config: gathered_bytes", config.get("gathered_bytes", 0)
    return checks.integer(what, least, 0, _ALL) if reshard else _ALL
