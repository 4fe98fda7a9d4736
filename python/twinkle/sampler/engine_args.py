"""vLLM's engine arguments: which option of the engine each is, and what to use in place of those
that are none. Every one has its effect or is refused."""

from dataclasses import dataclass, field

from twinkle import checks
from twinkle.core import option_names
from twinkle.errors import InvalidError, NotAvailableError, refuse_unknown, require
from twinkle.logger import get_logger

# Options of an engine of the sampler's own, by vLLM's names.
_ENGINE = {
    "max_num_seqs": "max_sequences", "max_num_batched_tokens": "prefill_tokens",
    "enable_prefix_caching": "prefix_cache", "enforce_eager": "decode_graphs",
    "gpu_memory_utilization": "memory_share",
}  # fmt: skip
_ROUTES = "enable_return_routed_experts"
_USED = ("max_model_len", "dtype", "seed", "max_loras", "max_lora_rank", "logprobs_mode", "model",
         "enable_lora", "load_format", "enable_tower_connector_lora", _ROUTES)  # fmt: skip
# Those with one value that says what this engine does, and what to do instead of asking for others.
_ONLY = {
    "quantization": (None, "this version has none: leave it out"),
    "tensor_parallel_size": (1, "this version samples on one device"),
    "pipeline_parallel_size": (1, "this version samples on one device"),
    "data_parallel_size": (1, "this version samples on one device"),
    "trust_remote_code": (False, "no code of a model's is ever run: leave it out"),
    "enable_sleep_mode": (False, "the engine's memory is freed with the sampler: leave it out"),
    "disable_log_stats": (True, "nothing is logged on its own: ask the engine's stats()"),
    "enable_chunked_prefill": (True, "prompts are always read in parts: see prefill_tokens"),
    "kv_cache_dtype": ("auto", "keys and values have the model's dtype: see dtype"),
    "swap_space": (0, "sequences are never swapped out: raise kv_tokens"),
    "cpu_offload_gb": (0, "weights are in the device's memory"),
    "skip_tokenizer_init": (False, "it is read when it is needed: pass input_ids"),
}
_INSTEAD = {
    "num_gpu_blocks_override": "kv_tokens, in tokens", "kv_cache_memory_bytes": "kv_tokens",
    "block_size": "nothing: pages have 64 tokens", "tokenizer": "set_template()",
    "max_seq_len_to_capture": "decode_graphs", "compilation_config": "decode_graphs",
    "speculative_config": "nothing: this version has no drafts",
    "revision": "the directory of the revision", "download_dir": "a directory as model_id",
    "max_logprobs": "nothing: logprobs may be up to 128",
}  # fmt: skip
_PRECISION = {"auto": "bf16", "bfloat16": "bf16", "float32": "no", "float": "no"}


@dataclass(frozen=True)
class EngineArgs:
    """The engine_args that a sampler uses. None: not given."""

    max_model_len: int | None
    max_loras: int
    max_lora_rank: int | None
    seed: int | None
    precision: str  # the engine's mixed_precision
    logprobs_mode: str | None
    adapters: bool  # true: adapter_path may be given
    routed_experts: bool  # true: every sample has them
    options: dict = field(default_factory=dict)  # for an engine of the sampler's own

    def check_logprobs(self, params):
        """InvalidError: params under which the engine's log-probabilities, which are of the whole
        distribution at the temperature, are not those of logprobs_mode."""
        if self.logprobs_mode is None or (params.logprobs, params.prompt_logprobs) == (None, None):
            return
        plain = {"temperature": (0, 1)}
        if self.logprobs_mode == "processed_logprobs":
            plain = {"top_k": (-1, 0), "top_p": (1,), "min_p": (0,), "repetition_penalty": (1,)}
        for name, same in plain.items():
            value = getattr(params, name)
            require(
                value in same,
                f"sampler: logprobs_mode is {self.logprobs_mode!r} and {name} is {value}, but "
                "log-probabilities are of the whole distribution at the temperature: set it to "
                f"{same[-1]}, or leave logprobs_mode out",
            )


def read(args, model, model_id):
    """EngineArgs of a dict of vLLM's names and of the engine's, or None. InvalidError: another
    thing or name, a value of another kind or outside its limits, an option of the engine where that
    is the model's; NotAvailableError: what this version does not have."""
    if args is not None and not isinstance(args, dict):
        checks.refuse("sampler: engine_args", args, "a dict")
    args = {name: value for name, value in (args or {}).items() if value is not None}
    _check_names(args)

    def integer(name, default=None, least=1, most=2**31 - 1):
        return checks.integer(f"sampler: {name}", args.get(name, default), least, most, none=True)

    _check_whole(args, model_id)
    options = _options(args)
    if model is not None and options:
        given = [name for name in args if name in options or _ENGINE.get(name) in options]
        ours = ", ".join(f"{name}={checks.short(value)}" for name, value in options.items())
        raise InvalidError(
            f"sampler: {', '.join(given)} of engine_args would change the engine, which is the "
            f"model's: leave it out, or give TransformersModel {ours}"
        )
    return EngineArgs(
        max_model_len=integer("max_model_len"),
        max_loras=integer("max_loras", 1),
        max_lora_rank=integer("max_lora_rank"),
        seed=integer("seed", least=0, most=2**64 - 1),
        precision=_precision(args.get("dtype", "auto"), model),
        logprobs_mode=_logprobs_mode(args.get("logprobs_mode")),
        adapters=checks.flag("sampler: enable_lora", args.get("enable_lora", True)),
        routed_experts=checks.flag(f"sampler: {_ROUTES}", args.get(_ROUTES, False)),
        options=options,
    )


def _check_names(args):
    for name in args:
        if name in _INSTEAD:
            raise InvalidError(
                f"sampler: {name} of engine_args is not this engine's, use {_INSTEAD[name]}"
            )
    refuse_unknown("sampler: engine_args", args, (*_ENGINE, *_USED, *_ONLY, *option_names()))


def _options(args):
    """The engine's options by its own names. The engine checks what it gets; those that have
    another name or meaning there are checked here, by vLLM's."""
    own = option_names()
    options = {name: value for name, value in args.items() if name in own}
    for name in args:
        if name not in _ENGINE:
            continue
        ours, what = _ENGINE[name], f"sampler: {name}"
        require(ours not in options, f"{what} and {ours} are the same: give one of them")
        if name in ("enable_prefix_caching", "enforce_eager"):
            options[ours] = checks.flag(what, args[name]) == (name != "enforce_eager")
        elif name == "gpu_memory_utilization":
            options[ours] = checks.number(what, args[name], above=0)
            if options[ours] > 1:
                checks.refuse(what, args[name], "a number above 0, at most 1")
        else:
            options[ours] = checks.integer(what, args[name], 1, 2**31 - 1)
    return options


def _check_whole(args, model_id):
    """Names with only one allowed value, and those that no engine of this version can break."""
    for name, (only, why) in _ONLY.items():
        value = args.get(name, only)
        same = value == only and isinstance(value, bool) == isinstance(only, bool)
        require(same, f"sampler: {name} is {checks.short(value)}, it must be {only!r}, since {why}")
    given = args.get("model", model_id)
    require(
        given == model_id,
        f"sampler: model of engine_args is {given!r}, but model_id is {model_id!r}: leave it out",
    )
    kind = args.get("load_format", "auto")
    if kind not in ("auto", "safetensors"):
        checks.refuse("sampler: load_format", kind, "'auto' or 'safetensors', or left out")
    require(
        kind == "auto" or not str(model_id).endswith(".gguf"),
        f"sampler: load_format is 'safetensors', but model_id is {model_id!r}, a .gguf file: leave "
        "load_format out",
    )
    tower = args.get("enable_tower_connector_lora", False)
    if checks.flag("sampler: enable_tower_connector_lora", tower):
        get_logger().warning(
            "sampler: enable_tower_connector_lora is True, but only a model's text is sampled: "
            "there is no tower, and an adapter with weights for one is refused when it is read"
        )


def _precision(dtype, model):
    """The engine's mixed_precision for a dtype; the model's, which it must be, where there is
    one."""
    dtype = str(dtype).removeprefix("torch.")
    known = _PRECISION
    if model is not None:
        own = model.mixed_precision
        known = {name: own for name, of in _PRECISION.items() if name == "auto" or of == own}
    if dtype not in known:
        whose = "" if model is None else f", since the model's mixed_precision is {own!r}"
        checks.refuse("sampler: dtype", dtype, f"one of {', '.join(known)}{whose}")
    return known[dtype]


def _logprobs_mode(mode):
    if mode in ("raw_logits", "processed_logits"):
        raise NotAvailableError(
            f"sampler: logprobs_mode is {mode!r}, this version gives log-probabilities, no logits"
        )
    if mode not in (None, "raw_logprobs", "processed_logprobs"):
        raise InvalidError(
            f"sampler: logprobs_mode is {mode!r}, it must be 'raw_logprobs' or 'processed_logprobs'"
        )
    return mode
