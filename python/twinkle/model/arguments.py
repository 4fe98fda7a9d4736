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
    """The outputs of a forward besides log-probabilities, or instead of them."""

    embedding: bool = False  # each sequence's, in place of log-probabilities
    logits: bool = False
    temperature: float = 1.0
    loss_logits: bool = False  # for the loss, which learns through them
    values: bool = False  # the logits of a value head
    labels: bool = False  # the logits of an adapter's head of labels
    router_aux_loss_coef: float = 0.0  # in training: of the experts' auxiliary loss
    routes: bool = False  # where tokens went

    @property
    def learning(self):
        """The engine's arguments of a forward_backward alone."""
        coef = self.router_aux_loss_coef
        return {"router_aux_loss_coef": coef} if coef else {}

    @property
    def needs_logits(self):
        """True: the loss, or a value head, is of the engine's logits."""
        return self.loss_logits or self.values

    @property
    def gives(self):
        """The output that there is whatever else is asked for."""
        if self.embedding:
            return "embeddings"
        if self.labels:
            return "logits"
        return "values" if self.values else "logps"

    def of(self, group, value_head):
        """The same with what the group's loss asks for, and what its head gives."""
        if group.num_labels:  # their logits come anyway
            return replace(self, logits=False, labels=True)
        logits = group.loss.require_logits and not self.embedding
        return replace(self, loss_logits=logits, values=value_head)

    def check(self, loss):
        """InvalidError: the loss needs what the forward does not give."""
        wanted = [flag for flag in ("require_logps", "require_logits") if getattr(loss, flag)]
        require(
            not (self.embedding and wanted),
            f"loss: {type(loss).__name__} has {' and '.join(wanted)}, but task='embedding' gives "
            "embeddings alone; set a loss of embeddings, with require_logps = False",
        )

    def sequences(self, batch):
        """As the engine takes them."""
        has_none = self.embedding or self.values or self.labels
        return batch.unscored() if has_none else batch.sequences

    def check_size(self, batch, vocabulary):
        """InvalidError: more logits than are given, the padding counted."""
        if self.logits or self.loss_logits:
            asked_by = "require_logits" if self.loss_logits else "return_logits"
            batch.check_logits(asked_by, vocabulary)


def forward_kwargs(method, kwargs, temperature):
    """(Task, the loss's keyword arguments). InvalidError: what cannot be had is refused by name."""
    kwargs = dict(kwargs)
    task = kwargs.pop("task", "causal_lm")
    # The head is fused in either of the last two.
    if not isinstance(task, str) or task not in ("embedding", "causal_lm", "fused_lm_ce"):
        checks.refuse("model: task", task, "'causal_lm', 'fused_lm_ce' or 'embedding'")
    logits = checks.flag("model: return_logits", kwargs.pop("return_logits", False))
    logits = logits and task != "embedding"  # there are none
    routes = records(method, kwargs.pop("router_replay_action", None))
    coef = 0.0 if method == "forward_only" else kwargs.pop("router_aux_loss_coef", 0.0)
    coef = checks.number("model: router_aux_loss_coef", coef, least=0)
    if method != "forward_backward":  # others of it are the loss's
        size = kwargs.pop("micro_batch_size", None)  # the engine splits a batch as memory allows
        checks.integer("model: micro_batch_size", size, least=1, none=True)
        refuse_unknown(f"model: {method}", kwargs)
    temperature = checks.number("model: temperature", temperature, above=0)
    out = Task(task == "embedding", logits, temperature, router_aux_loss_coef=coef, routes=routes)
    return out, kwargs


def slice_kwargs(kwargs, begin, size, total, are_of_rows=None):
    """The part of per-sample loss arguments that belongs to a micro-batch. are_of_rows: {name:
    whether it has an entry for each row, or, of a dict, the same of each entry}; of what is not in
    it lengths tell."""

    def cut(value, is_of_rows):
        if isinstance(value, dict):
            known = is_of_rows if isinstance(is_of_rows, dict) else dict.fromkeys(value, is_of_rows)
            return {key: cut(item, known.get(key)) for key, item in value.items()}
        sized = hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0
        may_be = sized and not isinstance(value, str) and is_of_rows is not False
        return value[begin : begin + size] if may_be and len(value) == total else value

    return kwargs if size == total else cut(kwargs, are_of_rows)


def require_backward(group):
    """InvalidError: nothing is accumulated."""
    require(
        group.accumulated > 0,
        "model: step needs a backward since the last step; there is nothing to step with",
    )


def check_outputs(loss, together):
    """InvalidError: the last forward was not asked for what the loss needs."""
    for flag, name in (("require_logits", "logits"), ("require_entropy", "entropies")):
        require(
            together.task.embedding
            or not getattr(loss, flag)
            or name in together.outputs
            or (loss.require_logits and name == "entropies"),  # computed from logits
            f"model: {type(loss).__name__} has {flag}, but was set after the forward: call forward "
            "or forward_only again",
        )
