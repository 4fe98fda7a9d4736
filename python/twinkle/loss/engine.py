"""Losses that the compiled engine computes: in training with the decoder's own pass, and here.
Their options, with defaults and ranges, are those of the engine's table (options.json, which
tools/loss_options.py writes)."""

import functools
import inspect
import json
from pathlib import Path

from twinkle import checks
from twinkle.core import core
from twinkle.errors import refuse_unknown, require
from twinkle.loss.base import Loss, by_hand
from twinkle.loss.labels import scored

_TABLE = json.loads(Path(__file__).with_name("options.json").read_text())


class TableLoss(Loss):
    """Base of losses of the engine's table: a subclass of the name of one has its options as
    arguments and attributes. arguments: their names in order, if it is not the table's;
    more_arguments: others, which go to _set. number_arguments: options that a call gives."""

    whole_batch = True
    arguments = None
    more_arguments = ()
    number_arguments = ()

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("twinkle.loss.") and cls.__name__ in _TABLE:
            cls.table_name = cls.__name__
            cls._options = {option["name"]: option for option in _TABLE[cls.__name__]}
            names = [*(vars(cls).get("arguments") or cls._options), *cls.more_arguments]
            defaults = {n: cls._options.get(n, {}).get("default") for n in names}
            defaults["ignore_index"] = -100
            cls.option_names = tuple(n for n in names if n in cls._options and n != "ignore_index")
            cls.__init__ = _method(cls._set, {"self": ..., **defaults})

    def _set(self, ignore_index, **options):
        """InvalidError: an option that is out of its range, another ignore_index than -100."""
        require(
            ignore_index == -100 and not isinstance(ignore_index, bool),
            f"loss: ignore_index is {ignore_index!r}, labels are ignored by -100 only",
        )
        for name, value in options.items():
            setattr(self, name, self._checked(name, value))

    def _checked(self, name, value):
        option, what = self._options[name], f"loss: {name}"
        if value is None and option["default"] is None:
            return None
        if option["kind"] == "flag":
            return checks.flag(what, value)
        if option["kind"] == "text":
            return checks.one_of(what, value, option["one_of"])
        check = checks.integer if option["kind"] == "integer" else checks.number
        limits = {"above" if option["open"] else "least": option["least"], "most": option["most"]}
        return check(what, value, **limits)

    def engine_options(self, **kwargs):
        """The options, and those of number_arguments that kwargs give. InvalidError: one of these
        is out of its range."""
        given = {n: kwargs[n] for n in self.number_arguments if kwargs.get(n) is not None}
        numbers = {name: self._checked(name, value) for name, value in given.items()}
        return {**{name: getattr(self, name) for name in self.option_names}, **numbers}


class EngineLoss(TableLoss):
    """Base of the losses of whole batches that the engine computes with the decoder's pass, in
    float64. A subclass has engine_inputs, and a __call__ of its row_arguments and
    number_arguments."""

    row_arguments = ()

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "option_names" in vars(cls):
            cls.engine_name = cls.__name__
        if "option_names" in vars(cls) and "__call__" not in vars(cls):
            cls.row_arguments = cls.row_arguments  # the class that has the __call__ has them
            arguments = dict.fromkeys((*cls.row_arguments, *cls.number_arguments))
            required = dict.fromkeys(("self", "inputs", "outputs"), ...)
            cls.__call__ = _method(EngineLoss._call, required | arguments)

    def _call(self, inputs, outputs, **kwargs):
        """LossOutput of labels and logps [B, L], through which gradients flow back once, and of
        entropies [B, L] with require_entropy. Arguments: the class says which. InvalidError: as the
        class says, and as twinkle.loss.labels."""
        inputs, outputs = by_hand(self, inputs, outputs)
        mask = scored(inputs, f"loss: {type(self).__name__}")
        return {"loss": computed(self, inputs, outputs, mask, kwargs), "num_tokens": 0}


def _method(function, arguments):
    """A method that calls `function` by name; arguments: {name: default, or ... for none}."""
    kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    signature = inspect.Signature(
        inspect.Parameter(name, kind, default=none if default is ... else default)
        for name, default in arguments.items()
    )

    @functools.wraps(function)
    def method(*args, **kwargs):
        known = [name for name in arguments if name != "self"]
        refuse_unknown(f"loss: {type(args[0]).__name__}", kwargs, known)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return function(**given.arguments)

    method.__signature__ = signature
    return method


def computed(loss, inputs, outputs, mask, kwargs, weights=None):
    """The value of the engine's loss that `loss` is, float64, of the labels of mask [B, L] with
    weights [N] (None: 1), through which gradients flow back once."""
    extras = {
        name: (values[mask] if values.ndim == 2 else values).numpy()
        for name, values in loss.engine_inputs(inputs, **kwargs).items()
    }
    if weights is not None:
        extras["weights"] = weights.numpy()
    run = functools.partial(
        core().run_loss,
        loss.engine_name,
        json.dumps(loss.engine_options(**kwargs)),
        mask.sum(-1).tolist(),
        extras,
    )
    logps = outputs["logps"].double()[mask]
    entropies = outputs["entropies"].double()[mask] if loss.require_entropy else None
    return function_of_arrays().apply(run, logps, entropies)


@functools.cache
def function_of_arrays():
    """torch's Function of losses that run(*arrays) computes."""
    import torch  # here: to import twinkle.loss takes no torch

    class EngineFunction(torch.autograd.Function):
        """run(*arrays) is the loss and its gradients by them; None: there is none."""

        @staticmethod
        def forward(ctx, run, *values):
            value, *grads = run(*(None if x is None else x.detach().numpy() for x in values))
            ctx.save_for_backward(*(None if g is None else torch.from_numpy(g) for g in grads))
            return torch.tensor(value, dtype=torch.float64)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, upstream):
            return None, *(None if g is None else upstream * g for g in ctx.saved_tensors)

    return EngineFunction


def of_vectors(loss, vectors, extras, **numbers):
    """The value of the engine's loss that `loss` is, float64, of vectors [N, D] through which
    gradients flow back once. extras: tensors that it reads. InvalidError: it cannot take them."""
    arrays = {name: value.numpy() for name, value in extras.items()}
    options = json.dumps(loss.engine_options(**numbers))
    run = functools.partial(core().run_vector_loss, loss.table_name, options, arrays)
    return function_of_arrays().apply(run, vectors)
