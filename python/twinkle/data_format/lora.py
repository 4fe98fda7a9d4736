"""LoraConfig, with the fields of peft's class of that name; both are accepted everywhere."""

import json
from dataclasses import InitVar, asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any

from twinkle import checks
from twinkle.core import core
from twinkle.errors import InvalidError, names_arguments, refuse_unknown
from twinkle.logger import get_logger
from twinkle.without_effect import WITHOUT_EFFECT

# Fields of peft that change nothing here, and others that are taken at one value alone.
_NOTES = WITHOUT_EFFECT["LoraConfig"]
_OF_PEFT = dict.fromkeys(
    (*_NOTES, "alora_invocation_tokens", "arrow_config", "corda_config", "eva_config",
     "kasa_config", "layer_replication", "megatron_config", "monteclora_config",
     "trainable_token_indices", "use_bdlora", "velora_config")
) | {
    "bias": "none", "ensure_weight_tying": False, "fan_in_fan_out": False, "inference_mode": False,
    "lora_bias": False, "megatron_core": "megatron.core", "peft_type": "LORA",
    "qalora_group_size": 16, "use_qalora": False,
}  # fmt: skip
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
        given = vars(self) if rank is None else vars(self) | {"rank": rank}
        checked = {
            name: sorted(map(str, value)) if isinstance(value, (set, frozenset)) else value
            for name, value in given.items()
            if (name not in _NOTES or name == "task_type") and value is not _RANK
        }
        vars(self).update(core().new_adapter_fields(checked))

    def to_dict(self):
        """{field: value}, as peft's to_dict gives it: all but runtime_config. share_expert_factors
        and num_labels, which peft has not, are there where they are set."""
        own = [name for name in ("share_expert_factors", "num_labels") if not getattr(self, name)]
        left_out = ["runtime_config", *own]  # as peft: how it runs is not part of what is saved
        return {name: value for name, value in asdict(self).items() if name not in left_out}

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
            values = config
            refuse_unknown("lora: LoraConfig", values, known)
        elif hasattr(config, "to_dict") and hasattr(config, "peft_type"):
            labels = getattr(config, "num_labels", None)  # peft's class has no such field
            values = config.to_dict() | ({} if labels is None else {"num_labels": labels})
        else:
            raise InvalidError(
                f"lora: the config is a {type(config).__name__}, it must be a LoraConfig, a "
                "dict or a PEFT directory"
            )
        core().new_adapter_fields(
            {k: v for k, v in values.items() if k == "peft_type" or (v and k not in known)}
        )
        notes = [
            name for name in _NOTES if values.get(name) != "SEQ_CLS"
        ]  # a task_type that counts
        return cls(**{k: v for k, v in values.items() if k in known and k not in notes})


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
