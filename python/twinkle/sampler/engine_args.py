"""vLLM's engine arguments: which option of the engine each is, which have no effect, and what to
use in place of the others. Each has its effect, is in WITHOUT_EFFECT, or is refused."""

from dataclasses import replace
from functools import partial

from twinkle import checks
from twinkle.core import core, option_names
from twinkle.engine.arguments import params_of
from twinkle.errors import InvalidError, NotAvailableError, refuse_unknown, require
from twinkle.logger import get_logger
from twinkle.without_effect import WITHOUT_EFFECT

_WHAT = "sampler: engine_args"
# Options of an engine of the sampler's own, by vLLM's names.
_ENGINE = {
    "max_num_seqs": "max_sequences", "max_num_batched_tokens": "prefill_tokens",
    "enable_prefix_caching": "prefix_cache", "enforce_eager": "decode_graphs",
    "gpu_memory_utilization": "memory_share",
}  # fmt: skip
_INERT = WITHOUT_EFFECT["vLLMSampler: engine_args"]
_ROUTES, _TOWER = "enable_return_routed_experts", "enable_tower_connector_lora"
_PRECISION = {"auto": "bf16", "bfloat16": "bf16", "float32": "no", "float": "no"}


def _mode(what, mode):
    if mode in ("raw_logits", "processed_logits"):
        raise NotAvailableError(
            f"{what} is {mode!r}, this version gives log-probabilities, no logits"
        )
    return checks.one_of(what, mode, tuple(_PLAIN))


def _only(value, why):
    """A check of one that has a single value, which says what this engine does. why: and what to do
    instead of asking for others."""

    def check(what, given):
        if given != value or isinstance(given, bool) != isinstance(value, bool):
            checks.refuse(what, given, f"{value!r}, since {why}")
        return given

    return check


# Checks of values, by name; those of options of the engine are its own.
_COUNT = partial(checks.integer, least=1, most=2**31 - 1)
_ONE_DEVICE = _only(1, "this version samples on one device")
_CHECKS = {
    "max_model_len": _COUNT, "max_loras": _COUNT, "max_lora_rank": _COUNT,
    "seed": partial(checks.integer, least=0, most=2**64 - 1), "logprobs_mode": _mode,
    "max_logprobs": lambda what, n: checks.integer(what, n, -1, core().MAX_TOP_LOGPROBS),
    "enable_lora": checks.flag, _ROUTES: checks.flag, _TOWER: checks.flag,
    "load_format": partial(checks.one_of, choices=("auto", "safetensors")),
    "dtype": lambda what, value: str(value).removeprefix("torch."), "model": checks.path,
    "quantization": _only(None, "this version has none: leave it out"),
    "tensor_parallel_size": _ONE_DEVICE, "pipeline_parallel_size": _ONE_DEVICE,
    "data_parallel_size": _ONE_DEVICE,
    "kv_cache_dtype": _only("auto", "keys and values have the model's dtype: see dtype"),
    "cpu_offload_gb": _only(0, "weights are in the device's memory"),
}  # fmt: skip
# Values of SamplingParams under which the engine's log-probabilities, which are of the whole
# distribution at the temperature, are those of a logprobs_mode; the last one leaves a field out.
_PLAIN = {
    "raw_logprobs": {"temperature": (0, 1)},
    "processed_logprobs": {
        "top_k": (-1, 0), "top_p": (1,), "min_p": (0,), "repetition_penalty": (1,),
    },
}  # fmt: skip
_INSTEAD = {
    "num_gpu_blocks_override": "kv_tokens, in tokens", "kv_cache_memory_bytes": "kv_tokens",
    "tokenizer": "set_template()", "compilation_config": "decode_graphs",
    "speculative_config": "nothing: this version has no drafts",
    "revision": "the directory of the revision", "download_dir": "a directory as model_id",
}  # fmt: skip


class EngineArgs:
    """A sampler's use of its engine_args, a dict of vLLM's names and of the engine's, or None.

    given: by name, without those that are None. precision: the engine's mixed_precision. options:
    for an engine of the sampler's own. InvalidError: another thing or name, a value of another kind
    or outside its limits, an option of the engine where that is the model's; NotAvailableError:
    what this version does not have.
    """

    def __init__(self, args, model, model_id):
        args = {} if args is None else checks.instance(_WHAT, args, dict, "a dict")
        args = {name: value for name, value in args.items() if value is not None}
        for name in filter(args.get, _INSTEAD):
            raise InvalidError(
                f"sampler: {name} of engine_args is not this engine's, use {_INSTEAD[name]}"
            )
        own = option_names()
        refuse_unknown(_WHAT, args, (*_CHECKS, *_ENGINE, *_INERT, *own))
        for name in filter(args.__contains__, _CHECKS):
            args[name] = _CHECKS[name](f"sampler: {name}", args[name])
        _check_weights(args, model_id)
        if args.get(_TOWER):
            get_logger().warning(
                f"sampler: {_TOWER} is True, but only a model's text is sampled: "
                "there is no tower, and an adapter with weights for one is refused when it is read"
            )
        options = {name: value for name, value in args.items() if name in own}
        for name in filter(args.__contains__, _ENGINE):
            ours, value = _ENGINE[name], args[name]
            core().check_engine_option(ours, value, f"sampler: {name}")
            require(
                ours not in options, f"sampler: {name} and {ours} are the same: give one of them"
            )
            options[ours] = not value if name == "enforce_eager" else value
        if model is not None and options:
            given = [name for name in args if name in options or _ENGINE.get(name) in options]
            ours = ", ".join(f"{name}={checks.short(value)}" for name, value in options.items())
            raise InvalidError(
                f"sampler: {', '.join(given)} of engine_args would change the engine, which is the "
                f"model's: leave it out, or give TransformersModel {ours}"
            )
        self.given, self.options = args, options
        self.precision = _precision(args.get("dtype", "auto"), model)

    def params(self, given, named):
        """SamplingParams of sample()'s, or of the fields that it was given by name. InvalidError:
        they can't be, or not with logprobs_mode."""
        require(
            given is None or not named,
            f"sampler: {', '.join(sorted(named))} is given next to sampling_params: put it there",
        )
        params = params_of("sampler", named if given is None else given)
        mode = self.given.get("logprobs_mode")
        if (params.logprobs, params.prompt_logprobs) != (None, None):
            for name, same in _PLAIN.get(mode, {}).items():
                value = getattr(params, name)
                require(
                    value in same,
                    f"sampler: logprobs_mode is {mode!r} and {name} is {value}, but "
                    "log-probabilities are of the whole distribution at the temperature: set it to "
                    f"{same[-1]}, or leave logprobs_mode out",
                )
        return replace(params, routed_experts=True) if self.given.get(_ROUTES) else params


def _check_weights(args, model_id):
    given = args.get("model", model_id)
    require(
        given == model_id,
        f"sampler: model of engine_args is {given!r}, but model_id is {model_id!r}: leave it out",
    )
    require(
        args.get("load_format", "auto") == "auto" or not str(model_id).endswith(".gguf"),
        f"sampler: load_format is 'safetensors', but model_id is {model_id!r}: leave it out",
    )


def _precision(dtype, model):
    """The engine's mixed_precision for a dtype; the model's, which it must be, where there is
    one."""
    known, whose = _PRECISION, ""
    if model is not None:
        own = model.mixed_precision
        known = {name: own for name, of in _PRECISION.items() if name == "auto" or of == own}
        whose = f", since the model's mixed_precision is {own!r}"
    if dtype not in known:
        checks.refuse("sampler: dtype", dtype, f"one of {', '.join(known)}{whose}")
    return known[dtype]
