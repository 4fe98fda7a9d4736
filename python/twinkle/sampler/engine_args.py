"""vLLM's engine arguments: what they are here, and which of them change nothing."""

from dataclasses import dataclass, field

from twinkle import checks
from twinkle.errors import InvalidError, NotAvailableError, refuse_unknown, require
from twinkle.logger import get_logger

# Those that are options of an engine of the sampler's own, by the name that the engine has.
_ENGINE = {"max_num_seqs": "max_sequences", "max_num_batched_tokens": "prefill_tokens"}
_USED = ("max_model_len", "dtype", "seed", "max_loras", "max_lora_rank", "logprobs_mode", "model",
         "load_format", "quantization", "tensor_parallel_size", "enforce_eager")  # fmt: skip
# Those that say how vLLM goes about it: checked, and logged once.
_INERT_FLAGS = ("enable_lora", "enable_sleep_mode", "enable_prefix_caching", "trust_remote_code",
                "disable_log_stats", "enable_tower_connector_lora")  # fmt: skip
_INERT = (*_INERT_FLAGS, "gpu_memory_utilization", "swap_space")
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
    options: dict = field(default_factory=dict)  # of an engine of the sampler's own

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
    """EngineArgs of a dict of vLLM's names, or None. InvalidError: another thing or name, a value
    of another kind or outside its limits; NotAvailableError: what this version does not have."""
    if args is not None and not isinstance(args, dict):
        checks.refuse("sampler: engine_args", args, "a dict")
    args = {} if args is None else args
    refuse_unknown("sampler: engine_args", args, (*_ENGINE, *_USED, *_INERT))
    args = {name: value for name, value in args.items() if value is not None}

    def integer(name, default=None, least=1, most=2**31 - 1):
        return checks.integer(f"sampler: {name}", args.get(name, default), least, most, none=True)

    _check_whole(args, model_id)
    options = {ours: integer(name) for name, ours in _ENGINE.items() if name in args}
    if "enforce_eager" in args:
        eager = checks.flag("sampler: enforce_eager", args["enforce_eager"])
        options["decode_graphs"] = not eager
    inert = [name for name in _INERT if name in args]
    if model is not None:  # whose engine is made already
        inert += [name for name in (*_ENGINE, "enforce_eager") if name in args]
    get_logger().info_if(
        f"sampler: {', '.join(inert)} of engine_args change nothing here"
        + ("" if model is None else ", where the engine is the model's"),
        inert,
    )
    return EngineArgs(
        max_model_len=integer("max_model_len"),
        max_loras=integer("max_loras", 1),
        max_lora_rank=integer("max_lora_rank"),
        seed=integer("seed", least=0, most=2**64 - 1),
        precision=_precision(args.get("dtype", "auto"), model),
        logprobs_mode=_logprobs_mode(args.get("logprobs_mode")),
        options=options,
    )


def _check_whole(args, model_id):
    """Names with only one allowed value, and the types of those without effect."""
    for name, only, why in (
        ("quantization", None, "this version has none"),
        ("tensor_parallel_size", 1, "this version samples on one device"),
    ):
        value = args.get(name, only)
        require(value == only, f"sampler: {name} is {value!r}, {why}")
    given = args.get("model", model_id)
    require(
        given == model_id,
        f"sampler: model of engine_args is {given!r}, but model_id is {model_id!r}: leave it out",
    )
    kind = args.get("load_format", "auto")
    if kind not in ("auto", "safetensors"):
        checks.refuse("sampler: load_format", kind, "'auto' or 'safetensors', or left out")
    for name in _INERT_FLAGS:
        checks.flag(f"sampler: {name}", args.get(name, False))
    share = args.get("gpu_memory_utilization", 1)
    what = "sampler: gpu_memory_utilization"
    if checks.number(what, share, above=0) > 1:
        checks.refuse(what, share, "a number above 0, at most 1")
    checks.number("sampler: swap_space", args.get("swap_space", 0), least=0)


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
