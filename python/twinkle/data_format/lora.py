"""LoraConfig, with the fields of peft's class of that name; both are accepted everywhere."""

import json
import sys
from dataclasses import InitVar, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from twinkle import checks
from twinkle.core import core
from twinkle.errors import (
    InvalidError,
    names_arguments,
    refuse_unknown,
    require,
)
from twinkle.logger import get_logger
from twinkle.without_effect import WITHOUT_EFFECT

# Fields of peft that change the arithmetic, and of which only the default is taken.
_REFUSED = {
    'fan_in_fan_out', 'modules_to_save', 'layers_to_transform', 'layers_pattern',
    'use_dora', 'exclude_modules', 'megatron_config', 'trainable_token_indices',
    'eva_config', 'corda_config', 'velora_config', 'alora_invocation_tokens', 'use_qalora',
    'monteclora_config', 'layer_replication', 'lora_bias', 'use_bdlora',
    'arrow_config', 'kasa_config', 'ensure_weight_tying',
}  # fmt: skip


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
    expression; 'all-linear' leaves out the output layer, whose name is 'lm_head'. A name of a list
    that matches nothing is warned of, unless all are such: then the adapter is refused.

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
        _must("rank", self.r, _is_integer(self.r) and self.r >= 1, "at least 1")
        _must("rank", self.r, self.r < 2**31, "below 2**31")
        for name in ("rank_pattern", "alpha_pattern"):
            if getattr(self, name) is None:
                setattr(self, name, {})
        for name in ("target_modules", "target_parameters"):
            if isinstance(getattr(self, name), (set, tuple)):
                setattr(self, name, sorted(map(str, getattr(self, name))))
        parameters = self.target_parameters or []
        if self.target_modules == [] and parameters:  # as peft's help has it
            self.target_modules = None
        modules, drop = self.target_modules, self.lora_dropout
        named = modules is None or (_are_names(modules) and modules)
        any_name = isinstance(modules, str) and modules
        for name, right, must in (
            ("lora_alpha", _is_alpha(self.lora_alpha), "above 0 and finite"),
            ("lora_dropout", _is_number(drop) and 0 <= drop < 1, "at least 0 and below 1"),
            ("target_modules", named or any_name,
             "'all-linear', a list of names or a regular expression"),
            ("rank_pattern", _is_pattern(self.rank_pattern, _is_rank),
             "a dict of regular expressions and integers from 1 to 4096"),
            ("alpha_pattern", _is_pattern(self.alpha_pattern, _is_alpha),
             "a dict of regular expressions and numbers above 0"),
            ("target_parameters", _are_names(parameters), "a list of names"),
            ("lora_dropout", not parameters or drop == 0, "0 with target_parameters, as in peft"),
        ):  # fmt: skip
            _must(name, getattr(self, name), right, must)
        checks.flag("lora: use_rslora", self.use_rslora)
        checks.flag("lora: share_expert_factors", self.share_expert_factors)
        base = self.base_model_name_or_path
        checks.text("lora: base_model_name_or_path", base, none=True, empty=True)
        only = {**dict.fromkeys(sorted(_REFUSED)), "bias": "none", "init_lora_weights": True}
        for name, value in only.items():
            _takes_only(name, getattr(self, name), value)

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
        set. Of a directory only what counts for a finished adapter is read."""
        if isinstance(config, cls):
            return config
        rank = None
        if isinstance(config, (str, Path)):
            values = core().peft_config(checks.path("lora: the config", config))
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
            _takes_only(name, values[name] or None, None)
        kept = {k: values[k] for k in values if k in known - WITHOUT_EFFECT["LoraConfig"].keys()}
        # peft writes None for an empty pattern
        for name in ("rank_pattern", "alpha_pattern"):
            kept[name] = kept.get(name) or {}
        return cls(**kept, rank=rank)


def _must(name, value, right, must):
    require(right, f"lora: {name} is {checks.short(value)}, it must be {must}")


def _takes_only(name, value, only):
    """InvalidError: another value than `only`; of None: than those that peft writes for it."""
    unused = value in (None, {}, [], "") or value is False
    default = "its default" if only is None else repr(only)
    require(
        unused if only is None else value == only and type(value) is type(only),
        f"lora: {name} is {checks.short(value)}, this version takes only {default}",
    )


def _is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _are_names(values):
    return isinstance(values, list) and all(isinstance(name, str) and name for name in values)


def _is_pattern(pattern, fits):
    return isinstance(pattern, dict) and all(
        isinstance(key, str) and fits(value) for key, value in pattern.items()
    )


def _is_rank(value):
    return _is_integer(value) and 1 <= value <= 4096


def _is_alpha(value):
    return _is_number(value) and value > 0


def warn_of_another_base(adapter, *bases):
    """Logs a warning where a PEFT directory that was taken says that its base model has another
    name than `bases`, the ids or directories of the model in use. Shapes alone are refused: of
    weights with equal ones, it is unknown whether they are meant. NotFoundError and InvalidError:
    as LoraConfig.from_any of a directory."""
    named = core().peft_config(adapter)["base_model_name_or_path"] or ""
    last = named.rstrip("/").rpartition("/")[2].lower()
    if last not in " ".join(map(str, bases)).lower():
        get_logger().warning(
            f"lora: the adapter at {adapter} was trained on {named!r}, the model here is "
            f"{str(bases[0])!r}: its shapes fit, but it was not trained for these weights"
        )
