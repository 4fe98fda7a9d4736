"""Checks of arguments: what is refused, and by which name."""

import json
from dataclasses import dataclass, replace

from twinkle import checks
from twinkle.errors import NotAvailableError, refuse_unknown, require
from twinkle.logger import get_logger
from twinkle.model.router_replay import records

_FLAGS = ("low_cpu_mem_usage", "memory_efficient_init", "trust_remote_code", "use_cache")
# All of the constructor's, with the parameters that have a name there.
NAMES = (
    "attn_implementation", "config", "ddp_config", "device_map", "device_mesh", "dtype",
    "enable_router_replay", "fsdp_config", "grad_scaler_config", "instance_id", "mixed_precision",
    "model_cls", "model_id", "remote_group", "revision", "strategy", "tokenizer_id", "torch_dtype",
    *_FLAGS,
)  # fmt: skip
_PRECISION_OF = {"bfloat16": "bf16", "float32": "no"}


def check_model_cls(model_cls, value_head):
    """InvalidError: no class, or name of one, of a causal language model; with value_head a
    classifier of tokens or sequences may be given, too."""
    name = model_cls if isinstance(model_cls, str) else getattr(model_cls, "__name__", "")
    heads = ("ForCausalLM", "ForConditionalGeneration")  # its text model is taken
    if value_head:
        heads += ("ForTokenClassification", "ForSequenceClassification")
    require(
        model_cls is None or name.endswith(heads),
        f"model: model_cls is {model_cls!r}, this version has causal language models only"
        + (", of which a critic may be a classifier of tokens or sequences" if value_head else ""),
    )


def check_config(config, config_json):
    """InvalidError: no config of transformers, or a field of it is not as in the model's own, but
    for use_cache, which scripts set to False."""
    if config is None:
        return
    if isinstance(config, type) or not hasattr(config, "to_dict"):
        checks.refuse("model: config", config, "a config of transformers, or left out")
    own = type(config).from_dict(json.loads(config_json or "{}"))
    ours, given = (dict(_fields(one.to_dict())) for one in (own, config))
    changed = [name for name in sorted(ours | given) if ours.get(name) != given.get(name)]
    require(
        not changed,
        f"model: config has another {', '.join(changed)} than the model's own, which the engine "
        "reads: change that file, or leave config out",
    )


def _fields(config, path=""):
    """(name, value) of each field that counts; of dicts in dicts of those in them."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{path}{name}.")
        elif name not in ("_name_or_path", "use_cache"):
            yield f"{path}{name}", value


def check_dtype(mixed_precision, dtype):
    """InvalidError: a torch_dtype that is not that of mixed_precision."""
    dtype = str(dtype).removeprefix("torch.")
    require(
        dtype in ("None", "auto") or _PRECISION_OF.get(dtype) == mixed_precision,
        f"model: torch_dtype is {dtype}, but mixed_precision is {mixed_precision!r}; they must be "
        "bfloat16 and 'bf16', or float32 and 'no'",
    )


def check_kwargs_of_model(kwargs, device):
    """Checks arguments that are meant for other engines. InvalidError: a value of another kind,
    another device_map than the device."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    for name in _FLAGS:
        checks.flag(f"model: {name}", given.get(name, False))
    for name in ("attn_implementation", "instance_id"):
        checks.text(f"model: {name}", given.get(name), none=True)
    where = given.get("device_map", "auto")
    if not isinstance(where, str) or where not in ("auto", device):
        checks.refuse(
            "model: device_map", where, f"'auto' or {device!r}, where the model runs: device_mesh"
            ", remote_group and TWINKLE_DEVICE choose that",
        )  # fmt: skip
    inert = [name for name in ("attn_implementation", *_FLAGS) if name in given]
    get_logger().info_if(
        f"model: {', '.join(inert)} change nothing here: the engine has one way to do it", inert
    )


def refuse_grad_scaler(what):
    """Raises NotAvailableError: gradients are never scaled here. what: the argument's name."""
    raise NotAvailableError(
        f"model: {what} is for mixed_precision='fp16', which this version does not have: 'bf16' "
        "and 'no' need no scaled gradients, leave it out"
    )


@dataclass(frozen=True)
class Task:
    """The outputs that a forward is asked for, and how."""

    # The output that there is whatever else is asked for: logps, a sequence's embeddings, the
    # values of a value head, or the logits of an adapter's head of labels.
    gives: str = "logps"
    logits: bool = False
    temperature: float = 1.0
    router_aux_loss_coef: float = 0.0  # in training: of the experts' auxiliary loss
    routes: bool = False  # where tokens went
    loss_logits: bool = False  # for the loss, which learns through them

    @property
    def of_values(self):
        """True: the engine's logits are those of a value head."""
        return self.gives == "values"

    def of(self, group, value_head):
        """The same with what the group's loss asks for, and what its head gives."""
        if self.gives != "logps":
            return self
        if group.num_labels:  # their logits come anyway
            return replace(self, gives="logits", logits=False)
        gives = "values" if value_head else "logps"
        return replace(self, gives=gives, loss_logits=group.loss.require_logits)

    def check(self, loss):
        """InvalidError: the loss needs what the forward does not give."""
        wanted = [flag for flag in ("require_logps", "require_logits") if getattr(loss, flag)]
        require(
            self.gives != "embeddings" or not wanted,
            f"loss: {type(loss).__name__} has {' and '.join(wanted)}, but task='embedding' gives "
            "embeddings alone; set a loss of embeddings, with require_logps = False",
        )

    def sequences(self, batch):
        """As the engine takes them."""
        return batch.sequences if self.gives == "logps" else batch.unscored()

    def check_size(self, batch, vocabulary):
        """InvalidError: more logits than are given, the padding counted."""
        if self.logits or self.loss_logits:
            asked_by = "require_logits" if self.loss_logits else "return_logits"
            batch.check_logits(asked_by, vocabulary)


def forward_kwargs(method, kwargs, temperature):
    """(Task, the loss's keyword arguments). InvalidError: what cannot be had is refused by name."""
    kwargs = dict(kwargs)
    known = ("causal_lm", "fused_lm_ce", "embedding")  # the head is fused in either of the first
    task = checks.one_of("model: task", kwargs.pop("task", "causal_lm"), known)
    logits = checks.flag("model: return_logits", kwargs.pop("return_logits", False))
    routes = records(method, kwargs.pop("router_replay_action", None))
    coef = 0.0 if method == "forward_only" else kwargs.pop("router_aux_loss_coef", 0.0)
    coef = checks.number("model: router_aux_loss_coef", coef, least=0)
    if method != "forward_backward":  # others of it are the loss's
        size = kwargs.pop("micro_batch_size", None)  # the engine splits a batch as memory allows
        checks.integer("model: micro_batch_size", size, least=1, none=True)
        refuse_unknown(f"model: {method}", kwargs)
    temperature = checks.number("model: temperature", temperature, above=0)
    gives = "embeddings" if task == "embedding" else "logps"  # without logits
    return Task(gives, logits and gives == "logps", temperature, coef, routes), kwargs


def require_backward(group):
    """InvalidError: nothing is accumulated."""
    require(
        group.accumulated > 0,
        "model: step needs a backward since the last step; there is nothing to step with",
    )


def check_outputs(loss, together):
    """InvalidError: the last forward was not asked for what the loss needs."""
    flag, name = "require_entropy", "entropies"
    if loss.require_logits:  # entropies are computed of these
        flag, name = "require_logits", "logits"
    require(
        together.task.gives == "embeddings" or not getattr(loss, flag) or name in together.outputs,
        f"model: {type(loss).__name__} has {flag}, but was set after the forward: call forward "
        "or forward_only again",
    )
