"""The base class of losses, and how one written in Python meets the engine."""

import inspect
import math

from twinkle import checks
from twinkle.errors import InvalidError, refuse_unknown, require


class Loss:
    """Base of all losses. A subclass defines __call__ in torch; it runs in the caller's process.

    __call__(inputs, outputs, **kwargs): `inputs` holds padded tensors [B, L]: input_ids (0),
    labels (-100, already shifted), attention_mask (0). `outputs['logps']` [B, L] float32 is
    log p(label), 0 where ignored, and requires grad; with require_entropy, so does
    `outputs['entropies']` [B, L] float32 in nats. With task='embedding', which is for losses with
    require_logps = False, there is `outputs['embeddings']` [B, D] float32 alone, of L2 norm 1, and
    requires grad. With require_logits `outputs['logits']` [B, L, V] float32, divided by the
    temperature, requires grad, and what else is read is computed from it; at most 1 GiB a call. In
    evaluation logits are there after forward_only(return_logits=True), too. A loss with
    require_values is one of TransformersValueModel: `outputs['values']` [B, L] float32, 0 where the
    label is ignored, requires grad, and there is nothing else. kwargs are those of
    forward_backward. To read one of these where it is not there raises InvalidError.
    Returns a scalar tensor, or LossOutput {'loss', 'num_tokens'}: num_tokens is what a step
    divides the gradient by; without it, or 0, the loss is a mean and counts once per call.
    """

    require_logits = False
    require_entropy = False
    require_logps = True
    require_values = False
    # True: of the logits [B, num_labels] of an adapter's head of labels, `outputs['logits']`; the
    # engine's own alone are
    of_labels = False
    # True: it gets a call's sequences all at once, as the engine's own losses do, so that
    # micro_batch_size leaves its numbers as they are
    whole_batch = False
    # For several ranks: names of the arguments with an entry for each sequence of a rank's, or each
    # pair, which are put one rank's after the other's. None: lengths tell. It is of the __call__
    # that its class has: a subclass with another one says it anew
    row_arguments = None

    engine_name = None  # for the engine's own losses, which compute in its pass: see engine_loss

    def engine_options(self, **kwargs):
        """{option: JSON value} of the engine's loss engine_name; kwargs are those of __call__."""
        del kwargs
        return {}

    def engine_inputs(self, inputs, **kwargs):
        """{name: float64 tensor [B, L], or [B]} of what the engine's loss engine_name reads besides
        labels. InvalidError: what __call__ refuses."""
        del inputs, kwargs
        return {}

    def __call__(self, inputs, outputs, **kwargs):
        """A scalar tensor or a LossOutput; the class says of what."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__")


def engine_loss(loss):
    """The name of the engine's loss that this one is, or None. A class that overrides __call__ is
    its user's own, whatever its base is."""
    return _of_call(loss, "engine_name")


def row_arguments(loss):
    """The loss's row_arguments; None where they are of a base class whose __call__ it overrides,
    since its own may take others. InvalidError: no names."""
    names = _of_call(loss, "row_arguments")
    is_list = isinstance(names, (tuple, list, set, frozenset))
    if names is not None and not (is_list and all(isinstance(n, str) for n in names)):
        must = "a tuple of names, such as ('weights',) or ()"
        checks.refuse(f"loss: row_arguments of {type(loss).__name__}", names, must)
    return names


def _of_call(loss, attribute):
    """An attribute that describes __call__: None where a class overrides that alone."""
    for owner in (loss, *type(loss).__mro__):
        if attribute in vars(owner):
            return getattr(loss, attribute)
        if "__call__" in vars(owner):
            return None
    return None


class FunctionLoss(Loss):
    """A plain function used as a loss, of whatever it reads of the outputs."""

    require_logps = False

    def __init__(self, function):
        self.function = function
        self.row_arguments = getattr(function, "row_arguments", None)

    def __call__(self, inputs, outputs, **kwargs):
        return self.function(inputs, outputs, **kwargs)


# Outputs that a loss may read, and the argument that asks for each.
_SOURCES = {
    "logps": "call without task='embedding'",
    "entropies": "set a subclass of Loss with require_entropy = True",
    "embeddings": "call with task='embedding', for which the loss has require_logps = False",
    "logits": (
        "set a subclass of Loss with require_logits = True, or, in evaluation, call "
        "forward_only(return_logits=True)"
    ),
    "values": "train a TransformersValueModel, whose losses have require_values = True",
}


def _of_logits(name, logits, labels):
    """logps or entropies [B, L] of logits [B, L, V], 0 where the label is ignored."""
    import torch

    of_all = torch.log_softmax(logits, -1)
    if name == "logps":
        chosen = of_all.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    else:
        chosen = -(of_all.exp() * of_all).sum(-1)
    return torch.where(labels != -100, chosen, 0.0)


class _Outputs(dict):
    """The inputs of a loss; logps and entropies are computed from logits if only those exist, and
    one of _SOURCES that is not there is refused by name."""

    def __init__(self, outputs, loss, labels):
        super().__init__(outputs)
        self._reader, self._labels = type(loss).__name__, labels

    def __contains__(self, name):
        has = super().__contains__
        return has(name) or (name in ("logps", "entropies") and has("logits"))

    def get(self, name, default=None):
        if name not in self:
            return default
        return self[name]

    def __missing__(self, name):
        if name in self:
            self[name] = _of_logits(name, self["logits"], self._labels)
            return self[name]
        if name not in _SOURCES:
            raise KeyError(name)
        remedy = _SOURCES[name] if "values" not in self else "a value model gives nothing else"
        there = " and ".join(f"outputs[{n!r}]" for n in _SOURCES if n in self) or "nothing"
        raise InvalidError(
            f"loss: {self._reader} reads outputs[{name!r}], but there is only {there}: {remedy}"
        )


def by_hand(loss, inputs, outputs):
    """(inputs, outputs) as a model gives them to a loss, of what a script passes itself: tensors
    [B, L], and logits [B, L, V], of which logps and entropies are computed where these are not
    given. Of one sequence all may be without B. InvalidError: no labels, a tensor of another
    shape."""
    import torch

    require("labels" in inputs, f"loss: {type(loss).__name__} needs inputs['labels']")
    labels = torch.as_tensor(inputs["labels"])
    one, shape = labels.ndim == 1, tuple(labels.shape)

    def shaped(name, value):
        value = torch.as_tensor(value)
        found = tuple(value.shape[:-1] if name == "logits" else value.shape)
        require(
            found == shape,
            f"loss: {name} of {type(loss).__name__} has the shape {list(value.shape)}, but labels "
            f"have {list(shape)}: it must have an entry for each label",
        )
        return value[None] if one else value

    def each(given, names):
        own = dict(given)  # without what _Outputs would compute
        return own | {name: shaped(name, own[name]) for name in names if own.get(name) is not None}

    inputs = each(inputs, ("labels", "attention_mask", "loss_scale"))
    outputs = each(outputs, ("logps", "entropies", "logits", "values"))
    return inputs, _Outputs(outputs, loss, inputs["labels"])


def check_usable(loss, value_head=False):
    """InvalidError: the loss has require_values, and the model has no value_head, or it is the
    other way round; it needs what a model with a value_head does not give; its row_arguments are no
    names."""
    name, only = type(loss).__name__, "a TransformersValueModel gives outputs['values'] alone"
    row_arguments(loss)
    require(
        value_head or loss.of_labels or not loss.require_values,
        f"loss: {name} has require_values, but the model has no value head: set it on a "
        "TransformersValueModel; here there is outputs['logps'], with require_entropy "
        "outputs['entropies'], and with require_logits outputs['logits']",
    )
    require(
        not value_head or loss.require_values,
        f"loss: {name} has no require_values, but {only}: set PPOValueLoss, or a subclass of Loss "
        "with require_values = True",
    )
    extra = [flag for flag in ("require_entropy", "require_logits") if getattr(loss, flag)]
    require(not (value_head and extra), f"loss: {name} has {' and '.join(extra)}, but {only}")


def check_head(loss, num_labels, value_head):
    """InvalidError: the loss is of a head of labels, and the adapter has none, or it is the other
    way round. num_labels: of the adapter's head; 0: none."""
    name, is_own = type(loss).__name__, engine_loss(loss) is not None
    require(
        not num_labels or (loss.of_labels and is_own),
        f"loss: {name} cannot be learnt through the adapter's head of labels: set RewardLoss or "
        "ClassificationLoss",
    )
    require(
        num_labels or value_head or not loss.of_labels,
        f"loss: {name} is of a head of labels, which the adapter does not have: add one with "
        "LoraConfig(task_type='SEQ_CLS', num_labels=...)",
    )


def check_kwargs(loss, kwargs):
    """InvalidError: keyword arguments that the loss's __call__ does not take, by name."""
    function = loss.function if isinstance(loss, FunctionLoss) else loss.__call__
    parameters = inspect.signature(function).parameters.values()
    if engine_loss(loss) is None and any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = sorted({p.name for p in parameters} - {"inputs", "outputs", "kwargs"})
    refuse_unknown(f"loss: {type(loss).__name__}", kwargs, known)


def evaluate(loss, inputs, outputs, kwargs):
    """(scalar tensor, num_tokens) of a loss. InvalidError: no scalar, or not finite; the loss reads
    an output that is not there."""
    import torch

    name, num_tokens = type(loss).__name__, 0
    result = loss(inputs, _Outputs(outputs, loss, inputs["labels"]), **kwargs)
    if isinstance(result, dict):
        require("loss" in result, f"loss: {name} returned a dict without 'loss'")
        num_tokens = float(result.get("num_tokens") or 0)
        result = result["loss"]
    require(
        isinstance(result, torch.Tensor) and result.numel() == 1,
        f"loss: {name} must return a scalar tensor or {{'loss': ..., 'num_tokens': ...}}, it "
        f"returned {type(result).__name__}",
    )
    value = result.item()
    require(math.isfinite(value), f"loss: {name} is {value}, nothing was accumulated")
    require(
        math.isfinite(num_tokens) and num_tokens >= 0,
        f"loss: num_tokens of {name} is {num_tokens}, it must be at least 0",
    )
    return result.reshape(()), num_tokens


def gradient(loss, inputs, outputs, kwargs):
    """(loss, num_tokens, {name: d loss / d outputs[name] [B, L]}) of all outputs, which are of
    floats, by torch's autograd in this process. InvalidError: a loss that evaluate refuses or that
    depends on no output, a gradient that is not finite."""
    import torch

    outputs = {name: value.detach().requires_grad_() for name, value in outputs.items()}
    with torch.enable_grad():
        value, num_tokens = evaluate(loss, inputs, outputs, kwargs)
        names = " or ".join(f"outputs[{name!r}]" for name in outputs)
        require(
            value.requires_grad,
            f"loss: {type(loss).__name__} does not depend on {names}, "
            "so there is nothing to learn from",
        )
        grads = torch.autograd.grad(value, list(outputs.values()), materialize_grads=True)
    require(
        all(bool(torch.isfinite(grad).all()) for grad in grads),
        f"loss: the gradient of {type(loss).__name__} is not finite, nothing was accumulated",
    )
    return value.item(), num_tokens, dict(zip(outputs, grads, strict=True))
