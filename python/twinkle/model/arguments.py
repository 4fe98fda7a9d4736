"""Checks of arguments: what is refused, and by which name."""

from twinkle.errors import NotAvailableError, refuse_unknown, require

# Arguments of upstream that have no effect on one device of this engine.
INERT = (
    "attn_implementation", "device_map", "enable_router_replay", "instance_id",
    "low_cpu_mem_usage", "memory_efficient_init", "remote_group", "revision", "trust_remote_code",
    "use_cache",
)  # fmt: skip
_PRECISION_OF = {"bfloat16": "bf16", "float32": "no"}


def check_arguments(model_cls, config, mixed_precision, strategy, dtype, router_replay):
    """Refuses what the model's constructor cannot take. InvalidError: a value that cannot be;
    NotAvailableError: one that this version does not have."""
    name = model_cls if isinstance(model_cls, str) else getattr(model_cls, "__name__", "")
    require(
        model_cls is None or name.endswith("ForCausalLM"),
        f"model: model_cls is {model_cls!r}, this version has causal language models only",
    )
    if router_replay:
        raise NotAvailableError("model: enable_router_replay needs mixture-of-experts models")
    require(
        config is None, "model: config is given, but the engine reads the config of model_id alone"
    )
    if mixed_precision in ("fp16", "fp8"):
        raise NotAvailableError(
            f"model: mixed_precision is {mixed_precision!r}, this version has 'bf16' and 'no'"
        )
    require(
        mixed_precision in ("bf16", "no"),
        f"model: mixed_precision is {mixed_precision!r}, it must be 'bf16' or 'no'",
    )
    require(
        strategy in ("accelerate", "native_fsdp"),
        f"model: strategy is {strategy!r}, it must be 'accelerate' or 'native_fsdp'",
    )
    dtype = str(dtype).removeprefix("torch.") if dtype is not None else "auto"
    require(
        dtype == "auto" or _PRECISION_OF.get(dtype) == mixed_precision,
        f"model: torch_dtype is {dtype}, but mixed_precision is {mixed_precision!r}; they must be "
        "bfloat16 and 'bf16', or float32 and 'no'",
    )


def refuse_grad_scaler(what):
    """Raises NotAvailableError: gradients are never scaled here. what: the argument's name."""
    raise NotAvailableError(
        f"model: {what} is for mixed_precision='fp16', which this version does not have: 'bf16' "
        "and 'no' need no scaled gradients, leave it out"
    )


def forward_kwargs(method, kwargs, loss=False):
    """The loss's keyword arguments; refuses what this version does not have, by name."""
    kwargs = dict(kwargs)
    task = kwargs.pop("task", "causal_lm")
    if task not in ("causal_lm", "fused_lm_ce"):  # the head is fused in either case
        raise NotAvailableError(
            f"model: task is {task!r}, this version has 'causal_lm' and 'fused_lm_ce' only"
        )
    if kwargs.pop("return_logits", False):
        raise NotAvailableError(
            "model: return_logits: logits [B, L, V] are never held; the output has logps"
        )
    if kwargs.pop("router_replay_action", None) is not None:
        raise NotAvailableError("model: router_replay_action needs mixture-of-experts models")
    if not loss:
        refuse_unknown(f"model: {method}", kwargs)
    return kwargs


def slice_kwargs(kwargs, begin, size, total):
    """The part of per-sample loss arguments that belongs to a micro-batch."""

    def cut(value):
        if isinstance(value, dict):
            return {key: cut(item) for key, item in value.items()}
        if hasattr(value, "__len__") and not isinstance(value, str) and len(value) == total:
            return value[begin : begin + size]
        return value

    return kwargs if size == total else {key: cut(value) for key, value in kwargs.items()}
