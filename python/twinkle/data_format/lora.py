"""LoraConfig, with the fields of peft's class of that name; both are accepted everywhere."""

import json
import sys
from dataclasses import InitVar, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from twinkle import checks
from twinkle.errors import (
    InvalidError,
    NotFoundError,
    names_arguments,
    refuse_unknown,
    require,
)
from twinkle.logger import get_logger

# Fields of peft that change nothing here.
_INERT = {
    'task_type', 'peft_type', 'auto_mapping', 'revision', 'inference_mode', 'peft_version',
    'runtime_config', 'loftq_config',
    'megatron_core', 'lora_ga_config', 'qalora_group_size',
}  # fmt: skip
# Fields of peft that change the arithmetic, and of which only the default is taken.
_REFUSED = {
    'fan_in_fan_out', 'modules_to_save', 'layers_to_transform', 'layers_pattern',
    'use_dora', 'exclude_modules', 'megatron_config', 'trainable_token_indices',
    'eva_config', 'corda_config', 'velora_config', 'alora_invocation_tokens', 'use_qalora',
    'monteclora_config', 'layer_replication', 'lora_bias', 'use_bdlora',
    'arrow_config', 'kasa_config', 'ensure_weight_tying',
}  # fmt: skip
# How factors may begin that take nothing from the base's weights; peft_config.cpp has the same.
_BEGINNINGS = (None, True, False, "gaussian", "orthogonal", "eva")
_OF_BEGINNINGS = {"init_lora_weights", "eva_config", "corda_config"}


def _is_number(value):
    right = isinstance(value, (int, float)) and not isinstance(value, bool)
    return right and abs(value) <= sys.float_info.max  # False for nan and for ints beyond floats


class _Unsaid(int):
    """r where nobody gives it: an 8 that is given is another number than rank=32."""


_RANK = _Unsaid(8)


@names_arguments("lora: LoraConfig", alpha="lora_alpha", dropout="lora_dropout")
@dataclass
class LoraConfig:
    """r: rank, also taken as rank=. target_modules: 'all-linear', a list of names, or a regular
    expression; 'all-linear' leaves out the output layer, whose name is 'lm_head'.

    target_parameters: stacks of experts, by the end of their path, 'mlp.experts.gate_up_proj' or
    'mlp.experts.down_proj'; gate_up_proj has one factor A for gate and up, target_modules'
    gate_proj and up_proj have one each. It takes no lora_dropout; with it target_modules may be [].
    rank_pattern, alpha_pattern: {pattern: r or lora_alpha of the modules whose path, or its end
    behind a dot, the regular expression matches}; of several the first counts.
    share_expert_factors: Twinkle's own: the experts of a layer share lora_A of gate_proj, that of
    up_proj, and lora_B of down_proj, as Tinker's adapters do, in whose form it is saved.
    lora_alpha: the delta is scaled by lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora.
    lora_dropout: 0 <= p < 1, on the adapter's input while training. base_model_name_or_path: what
    the adapter's files call the model; None: its id.
    InvalidError: r that is no integer of at least 1, lora_alpha that is not above 0, another
    lora_dropout or target_modules, a field that changes the arithmetic and is not at its default.
    """

    r: int = _RANK
    target_modules: list | str | None = None
    exclude_modules: list | str | None = None
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    fan_in_fan_out: bool = False
    bias: str = "none"
    use_rslora: bool = False
    modules_to_save: list | None = None
    init_lora_weights: Any = True
    layers_to_transform: list | int | None = None
    layers_pattern: list | str | None = None
    rank_pattern: dict = field(default_factory=dict)
    alpha_pattern: dict = field(default_factory=dict)
    use_dora: bool = False
    task_type: str | None = None
    base_model_name_or_path: str | None = None
    inference_mode: bool = False
    peft_type: str = "LORA"
    auto_mapping: dict | None = None
    peft_version: str | None = None
    revision: str | None = None
    megatron_config: dict | None = None
    megatron_core: str | None = "megatron.core"
    trainable_token_indices: list | dict | None = None
    loftq_config: dict = field(default_factory=dict)
    eva_config: Any = None
    corda_config: Any = None
    lora_ga_config: Any = None
    velora_config: Any = None
    alora_invocation_tokens: list | None = None
    use_qalora: bool = False
    qalora_group_size: int = 16
    monteclora_config: Any = None
    layer_replication: list | None = None
    runtime_config: Any = None
    lora_bias: bool = False
    target_parameters: list | None = None
    use_bdlora: Any = None
    arrow_config: Any = None
    kasa_config: Any = None
    ensure_weight_tying: bool = False
    share_expert_factors: bool = False
    rank: InitVar[int | None] = None  # the longer name of r

    def __post_init__(self, rank):
        if self.r is _RANK:
            self.r = int(_RANK) if rank is None else rank
        require(
            rank in (None, self.r),
            f"lora: r is {checks.short(self.r)} and rank is {checks.short(rank)}, two names of one "
            "number: leave one of them out",
        )
        require(
            isinstance(self.r, int) and not isinstance(self.r, bool) and self.r >= 1,
            f"lora: rank is {checks.short(self.r)}, it must be at least 1",
        )
        require(
            self.r < 2**31,
            f"lora: rank is {checks.short(self.r)}, it must be below 2**31",
        )
        require(
            _is_number(self.lora_alpha) and self.lora_alpha > 0,
            f"lora: lora_alpha is {checks.short(self.lora_alpha)}, it must be above 0 and finite",
        )
        require(
            _is_number(self.lora_dropout) and 0 <= self.lora_dropout < 1,
            f"lora: lora_dropout is {checks.short(self.lora_dropout)}, it must be at least 0 and "
            "below 1",
        )
        for name in ("rank_pattern", "alpha_pattern"):
            if getattr(self, name) is None:
                setattr(self, name, {})
        if isinstance(self.target_modules, (set, tuple)):
            self.target_modules = sorted(map(str, self.target_modules))
        if isinstance(self.target_parameters, (set, tuple)):
            self.target_parameters = sorted(map(str, self.target_parameters))
        parameters = self.target_parameters or []
        if self.target_modules == [] and parameters:  # as peft's help has it
            self.target_modules = None
        modules = self.target_modules
        if modules is not None and not (isinstance(modules, str) and modules):
            require(
                isinstance(modules, list)
                and modules
                and all(isinstance(name, str) and name for name in modules),
                f"lora: target_modules is {checks.short(modules)}, it must be 'all-linear', a list "
                "of names or a regular expression",
            )
        _check_patterns(self.rank_pattern, self.alpha_pattern)
        require(
            isinstance(parameters, list) and all(isinstance(p, str) and p for p in parameters),
            f"lora: target_parameters is {checks.short(parameters)}, it must be a list of names",
        )
        require(
            not parameters or self.lora_dropout == 0,
            f"lora: lora_dropout is {checks.short(self.lora_dropout)}, it must be 0 with "
            "target_parameters, as in peft",
        )
        checks.flag("lora: use_rslora", self.use_rslora)
        checks.flag("lora: share_expert_factors", self.share_expert_factors)
        named = self.base_model_name_or_path
        checks.text("lora: base_model_name_or_path", named, none=True, empty=True)
        for name in sorted(_REFUSED):
            require(
                getattr(self, name) in (None, {}, [], "") or getattr(self, name) is False,
                f"lora: {name} is {checks.short(getattr(self, name))}, this version takes only its "
                "default",
            )
        require(
            self.bias == "none",
            f"lora: bias is {checks.short(self.bias)}, this version takes only 'none'",
        )
        require(
            self.init_lora_weights is True,
            f"lora: init_lora_weights is {self.init_lora_weights!r}, this version takes only True",
        )

    def to_dict(self):
        """{field: value}, as peft's to_dict gives it: all but runtime_config. share_expert_factors,
        which peft has not, is there where it is True."""
        # As peft: how it runs is not part of what is saved.
        out = {k: v for k, v in asdict(self).items() if k != "runtime_config"}
        if not self.share_expert_factors:
            del out["share_expert_factors"]
        return out

    def to_json(self):
        """The text of PEFT's adapter_config.json."""
        return json.dumps(self.to_dict())  # the first pattern that matches counts

    @classmethod
    def from_any(cls, config):
        """From a LoraConfig, a peft.LoraConfig, a dict of its fields, or a PEFT directory.
        NotFoundError: no adapter_config.json in the directory; InvalidError: one that is no JSON
        object, another thing, a peft_type that is not LORA, values that the class refuses, an
        unknown field: of a dict any, of a directory and of peft, which may be newer, one that is
        set. How a directory's factors began (init_lora_weights) is left out, where that took
        nothing from the base's weights."""
        if isinstance(config, cls):
            return config
        rank = None
        if isinstance(config, (str, Path)):
            values = _without_beginning(_read(Path(checks.path("lora: the config", config))))
        elif isinstance(config, dict):
            values = dict(checks.mapping("lora: the config", config))
            rank = values.pop("rank", None)
            refuse_unknown("lora: LoraConfig", values, {f.name for f in fields(cls)})
        elif hasattr(config, "to_dict") and hasattr(config, "peft_type"):
            values = config.to_dict()
        else:
            raise InvalidError(
                f"lora: the config is a {type(config).__name__}, it must be a LoraConfig, a "
                "dict or a PEFT directory"
            )
        kind = getattr(values.get("peft_type"), "value", values.get("peft_type")) or "LORA"
        require(kind == "LORA", f"lora: peft_type is {kind!r}, only LORA is known")
        known = {f.name for f in fields(cls)}
        for name in sorted(set(values) - known):
            require(
                not values[name],
                f"lora: {name} is {values[name]!r}, this version takes only its default",
            )
        kept = {k: v for k, v in values.items() if k in known and k not in _INERT}
        # peft writes None for an empty pattern
        for name in ("rank_pattern", "alpha_pattern"):
            kept[name] = kept.get(name) or {}
        return cls(**kept, rank=rank)


def _without_beginning(values):
    """The config of a directory without the start of its factors, which peft keeps in every
    save."""
    began = values.get("init_lora_weights")
    if not isinstance(began, (str, bool, type(None))) or began not in _BEGINNINGS:
        return values
    return {key: value for key, value in values.items() if key not in _OF_BEGINNINGS}


def _check_patterns(ranks, alphas):
    for name, pattern, fits, what in (
        ("rank_pattern", ranks, _is_rank, "integers from 1 to 4096"),
        ("alpha_pattern", alphas, _is_alpha, "numbers above 0"),
    ):
        require(
            isinstance(pattern, dict)
            and all(isinstance(key, str) and fits(value) for key, value in pattern.items()),
            f"lora: {name} is {checks.short(pattern)}, it must be a dict of regular expressions "
            f"and {what}",
        )


def _is_rank(value):
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 4096


def _is_alpha(value):
    return _is_number(value) and value > 0


def _read(directory):
    """The values of a PEFT directory's adapter_config.json."""
    file = directory / "adapter_config.json"
    if not file.is_file():
        raise NotFoundError(
            f"lora: {directory} is no PEFT directory: adapter_config.json is missing"
        )
    try:
        values = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:  # JSON's and UTF-8's are ValueErrors
        raise InvalidError(f"lora: {file} cannot be read as JSON: {error}") from error
    require(
        isinstance(values, dict),
        f"lora: {file} holds a {type(values).__name__}, it must hold a JSON object",
    )
    return values


def warn_of_another_base(adapter, *bases):
    """Logs a warning where a PEFT directory that was taken says that its base model has another
    name than `bases`, the ids or directories of the model in use. Shapes alone are refused: of
    weights with equal ones, it is unknown whether they are meant. NotFoundError and InvalidError:
    as LoraConfig.from_any of a directory."""
    config = _read(Path(adapter))
    named = config.get("base_model_name_or_path") or ""
    last = str(named).rstrip("/").rpartition("/")[2].lower()
    if last not in " ".join(map(str, bases)).lower():
        get_logger().warning(
            f"lora: the adapter at {adapter} was trained on {named!r}, the model here is "
            f"{str(bases[0])!r}: its shapes fit, but it was not trained for these weights"
        )
