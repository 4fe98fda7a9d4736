"""LoraConfig, with the fields of peft's class of that name; both are accepted everywhere."""

import json
import re
from dataclasses import InitVar, asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any

from twinkle import checks
from twinkle.core import core
from twinkle.errors import InvalidError, names_arguments, refuse_unknown, require
from twinkle.logger import get_logger
from twinkle.without_effect import WITHOUT_EFFECT

# Fields of peft that change the arithmetic, and of which only this value is taken; None and False:
# only what peft takes for unused.
_REFUSED = {
    "alora_invocation_tokens": None, "arrow_config": None, "bias": "none", "corda_config": None,
    "ensure_weight_tying": False, "eva_config": None, "fan_in_fan_out": False,
    "kasa_config": None, "layer_replication": None, "lora_bias": False, "megatron_config": None,
    "monteclora_config": None, "trainable_token_indices": None,
    "use_bdlora": None, "use_qalora": False, "velora_config": None,
}  # fmt: skip
# Fields of peft that change nothing here.
_INERT = dict.fromkeys(WITHOUT_EFFECT["LoraConfig"]) | {
    "inference_mode": False, "megatron_core": "megatron.core", "peft_type": "LORA",
    "qalora_group_size": 16,
}  # fmt: skip
_OF_PEFT = _REFUSED | _INERT
_OfPeft = make_dataclass(
    "_OfPeft",
    [(name, Any, field(default=value, kw_only=True)) for name, value in _OF_PEFT.items()],
)


class _Unsaid(int):
    """r where nobody gives it: an 8 that is given is another number than rank=32."""


_RANK = _Unsaid(8)


@names_arguments("lora: LoraConfig", alpha="lora_alpha", dropout="lora_dropout")
@dataclass
class LoraConfig(_OfPeft):
    """r: rank, also taken as rank=. target_modules: 'all-linear', a list of names, or a regular
    expression; 'all-linear' leaves out the output layer, whose name is 'lm_head'. A name of a list
    that matches nothing is warned of, unless all are such: then the adapter is refused.

    target_parameters: stacks of experts, by the end of their path, 'mlp.experts.gate_up_proj' or
    'mlp.experts.down_proj'; gate_up_proj has one factor A for gate and up, target_modules'
    gate_proj and up_proj have one each. It takes no lora_dropout; with it target_modules may be [],
    and 'all-linear' leaves out the experts.
    rank_pattern, alpha_pattern: {pattern: r or lora_alpha of the modules whose path, or its end
    behind a dot, the regular expression matches}; of several the first counts.
    exclude_modules: names or one regular expression of modules that are left out.
    layers_to_transform: numbers of the layers whose modules a list of target_modules reaches;
    layers_pattern: regular expressions of what stands before these numbers.
    init_lora_weights: True; 'gaussian'; 'pissa' or 'pissa_niter_N' (PiSSA): lora_A and lora_B begin
    as the weight's part of its largest r singular values, and the base keeps its weights. Such an
    adapter is saved as a LoRA of rank 2 r.
    use_dora: DoRA: each row of a weight has a magnitude that learns; linear layers only.
    share_expert_factors: Twinkle's own: the experts of a layer share lora_A of gate_proj, that of
    up_proj, and lora_B of down_proj, as Tinker's adapters do, in whose form it is saved.
    task_type='SEQ_CLS' with num_labels, Twinkle's own: beside the factors the adapter trains a head
    of that many labels, 1 for rewards, peft's modules_to_save=['score'], which reads each
    sequence's last token.
    lora_alpha: the delta is scaled by lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora.
    lora_dropout: 0 <= p < 1, on the adapter's input while training. base_model_name_or_path: what
    the adapter's files call the model; None: its id.
    InvalidError: r that is no integer of at least 1, lora_alpha that is not above 0, another
    lora_dropout or target_modules, a field that changes the arithmetic and is not at its default.
    """

    r: int = _RANK
    target_modules: list | str | None = None
    lora_alpha: float = 8
    lora_dropout: float = 0.0
    use_rslora: bool = False
    rank_pattern: dict = field(default_factory=dict)
    alpha_pattern: dict = field(default_factory=dict)
    target_parameters: list | None = None
    base_model_name_or_path: str | None = None
    share_expert_factors: bool = False
    exclude_modules: list | str | None = field(default=None, kw_only=True)
    layers_to_transform: list | int | None = field(default=None, kw_only=True)
    layers_pattern: list | str | None = field(default=None, kw_only=True)
    init_lora_weights: bool | str = field(default=True, kw_only=True)
    use_dora: bool = field(default=False, kw_only=True)
    modules_to_save: list | None = field(default=None, kw_only=True)
    num_labels: int | None = field(default=None, kw_only=True)
    loftq_config: dict = field(default_factory=dict, kw_only=True)
    rank: InitVar[int | None] = None  # the longer name of r

    def __post_init__(self, rank):
        if self.r is _RANK:
            self.r = int(_RANK) if rank is None else rank
        require(
            rank in (None, self.r),
            f"lora: r is {checks.short(self.r)} and rank is {checks.short(rank)}, two names of one "
            "number: leave one of them out",
        )
        for name in ("rank_pattern", "alpha_pattern"):
            if getattr(self, name) is None:
                setattr(self, name, {})
        for name in ("target_modules", "target_parameters", "exclude_modules"):
            if isinstance(getattr(self, name), (set, tuple)):
                setattr(self, name, sorted(map(str, getattr(self, name))))
        if self.target_modules == ["all-linear"]:  # as ModelScope's Twinkle takes it
            self.target_modules = "all-linear"
        parameters = self.target_parameters or []
        if self.target_modules == [] and parameters:  # as peft's help has it
            self.target_modules = None
        modules, drop, layers = self.target_modules, self.lora_dropout, self.layers_to_transform
        is_share = _passes(checks.number, drop, least=0) and drop < 1
        one_text = isinstance(modules, str) and modules
        for name, value, right, must in (
            ("rank", self.r, _passes(checks.integer, self.r, 1, 2**31 - 1),
             "at least 1, and below 2**31"),
            ("lora_alpha", self.lora_alpha, _is_alpha(self.lora_alpha), "above 0 and finite"),
            ("lora_dropout", drop, is_share, "at least 0 and below 1"),
            ("target_modules", modules,
             modules is None or one_text or (modules and _are_names(modules)),
             "'all-linear', a list of names or a regular expression"),
            ("rank_pattern", self.rank_pattern, _is_pattern(self.rank_pattern, _is_rank),
             "a dict of regular expressions and integers from 1 to 4096"),
            ("alpha_pattern", self.alpha_pattern, _is_pattern(self.alpha_pattern, _is_alpha),
             "a dict of regular expressions and numbers above 0"),
            ("target_parameters", parameters, _are_names(parameters), "a list of names"),
            ("lora_dropout", drop, not parameters or drop == 0,
             "0 with target_parameters, as in peft"),
            ("exclude_modules", self.exclude_modules, _are_modules(self.exclude_modules),
             "a list of names or a regular expression"),
            ("layers_to_transform", layers, _are_layers(layers),
             "the number of a layer, from 0, or a list of such"),
            ("layers_to_transform", layers, layers is None or not one_text,
             "None where target_modules is a text, as in peft: list names in target_modules"),
            ("layers_pattern", self.layers_pattern, _are_modules(self.layers_pattern),
             "a name or a list of names"),
            ("layers_pattern", self.layers_pattern,
             not self.layers_pattern or layers is not None, "None without layers_to_transform"),
            ("init_lora_weights", self.init_lora_weights, _is_start(self.init_lora_weights),
             "True, 'gaussian', 'pissa' or 'pissa_niter_' and a number"),
        ):  # fmt: skip
            if not right:
                checks.refuse(f"lora: {name}", value, must)
        self._check_head()
        checks.flag("lora: use_rslora", self.use_rslora)
        checks.flag("lora: use_dora", self.use_dora)
        checks.flag("lora: share_expert_factors", self.share_expert_factors)
        base = self.base_model_name_or_path
        checks.text("lora: base_model_name_or_path", base, none=True, empty=True)
        for name, only in sorted(_REFUSED.items()):
            _takes_only(name, getattr(self, name), only or None)

    def _check_head(self):
        saved, labels = self.modules_to_save, self.num_labels
        if self.task_type != "SEQ_CLS":
            _takes_only("modules_to_save", saved, None)
            if labels is not None:
                must = "None: only task_type 'SEQ_CLS' has a head of labels"
                checks.refuse("lora: num_labels", labels, must)
            return
        self.task_type = "SEQ_CLS"  # peft's is an enum
        if not _passes(checks.integer, labels, 1, 65536):
            must = (
                "1 for rewards, or the number of classes, at most 65536, with task_type 'SEQ_CLS'"
            )
            more = "; of peft's config set the attribute num_labels"
            checks.refuse("lora: num_labels", labels, must + more)
        is_list = isinstance(saved, (list, tuple, set))
        if saved and not (is_list and all(name in ("score", "classifier") for name in saved)):
            checks.refuse("lora: modules_to_save", saved, "['score']")
        self.modules_to_save = ["score"]

    def to_dict(self):
        """{field: value}, as peft's to_dict gives it: all but runtime_config. share_expert_factors
        and num_labels, which peft has not, are there where they are set."""
        # As peft: how it runs is not part of what is saved.
        out = {k: v for k, v in asdict(self).items() if k != "runtime_config"}
        if not self.share_expert_factors:
            del out["share_expert_factors"]
        if self.num_labels is None:
            del out["num_labels"]
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
        known = {"rank", *(f.name for f in fields(cls))}
        if isinstance(config, (str, Path)):
            values = core().peft_config(checks.path("lora: the config", config))
        elif isinstance(config, dict):
            values = checks.mapping("lora: the config", config)
            refuse_unknown("lora: LoraConfig", values, known)
        elif hasattr(config, "to_dict") and hasattr(config, "peft_type"):
            labels = getattr(config, "num_labels", None)  # peft's class has no such field
            values = config.to_dict() | ({} if labels is None else {"num_labels": labels})
        else:
            raise InvalidError(
                f"lora: the config is a {type(config).__name__}, it must be a LoraConfig, a "
                "dict or a PEFT directory"
            )
        kind = getattr(values.get("peft_type"), "value", values.get("peft_type")) or "LORA"
        require(kind == "LORA", f"lora: peft_type is {kind!r}, only LORA is known")
        for name in sorted(set(values) - known):
            _takes_only(name, values[name] or None, None)
        kept = {k: v for k, v in values.items() if k in known and k not in _INERT}
        if values.get("task_type") == "SEQ_CLS":
            kept["task_type"] = "SEQ_CLS"
        return cls(**kept)


def _takes_only(name, value, only):
    """InvalidError: another value than `only`; of None: than those that peft writes for it."""
    unused = value in (None, {}, [], "") or value is False
    if not (unused if only is None else value == only and type(value) is type(only)):
        raise InvalidError(
            f"lora: {name} is {checks.short(value)}, this version takes only "
            + ("its default" if only is None else repr(only))
        )


def _passes(check, value, *limits, **more):
    """True if a function of twinkle.checks takes the value."""
    try:
        check("", value, *limits, **more)
    except InvalidError:
        return False
    return True


def _are_names(values):
    return isinstance(values, list) and all(isinstance(name, str) and name for name in values)


def _are_modules(value):
    return value is None or isinstance(value, str) or _are_names(value)


def _are_layers(value):
    layers = value if isinstance(value, list) else [value]
    return value is None or all(_passes(checks.integer, n, 0, 2**31 - 1) for n in layers)


def _is_start(value):
    named = isinstance(value, str) and re.fullmatch(r"gaussian|pissa(_niter_\d{1,9})?", value)
    return value is True or bool(named)


def _is_pattern(pattern, fits):
    return _passes(checks.mapping, pattern) and all(map(fits, pattern.values()))


def _is_rank(value):
    return _passes(checks.integer, value, 1, 4096)


def _is_alpha(value):
    return _passes(checks.number, value, above=0)


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
