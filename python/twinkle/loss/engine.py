"""Losses that the compiled engine computes: in training with the decoder's own pass, and here.
Their options, with defaults and ranges, and their arguments are those of the engine's table
(options.json, which tools/loss_options.py writes)."""

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
    arguments and attributes, and its _call with the table's arguments as __call__. arguments: the
    options' names in order, if it is not the table's; more_arguments: others, which go to _set.
    number_arguments: options that a call gives."""

    whole_batch = True
    arguments = None
    more_arguments = ()

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if not (cls.__module__.startswith("twinkle.loss.") and cls.__name__ in _TABLE):
            return
        cls.table_name, table = cls.__name__, _TABLE[cls.__name__]
        cls.row_arguments, cls.number_arguments = map(tuple, (table["arguments"], table["numbers"]))
        cls._options = {option["name"]: option for option in table["options"]}
        names = [*(cls.arguments or cls._options), *cls.more_arguments]
        defaults = {n: cls._options.get(n, {}).get("default") for n in names}
        defaults["ignore_index"] = -100
        cls.option_names = tuple(n for n in names if n in cls._options and n != "ignore_index")
        cls.__init__ = _method(cls._set, {"self": ..., **defaults})
        required = dict.fromkeys(("self", "inputs", "outputs"), ...)
        given = dict.fromkeys((*cls.row_arguments, *cls.number_arguments))
        cls.__call__ = _method(cls._call, required | given)

    def _set(self, ignore_index, **options):
        """InvalidError: an option that is out of its range, another ignore_index than -100."""
        require(
            ignore_index == -100 and not isinstance(ignore_index, bool),
            f"loss: ignore_index is {ignore_index!r}, labels are ignored by -100 only",
        )
        for name, value in options.items():
            setattr(self, name, self._checked(name, value))
        core().check_loss(self.table_name, json.dumps(self.engine_options()))

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

    def engine_inputs(self, inputs, **kwargs):
        """{name: tensor} of what the engine's loss reads of a call's arguments: float64 [B, L], 0
        where no label counts, or [B]; of GKDLoss [N, K], of InfonceLoss 'anchors' [G] int64.
        InvalidError: what __call__ refuses."""
        options, reader = json.dumps(self.engine_options()), f"loss: {type(self).__name__}"
        return core().loss_extras(self.table_name, options, inputs, kwargs, reader)

    def _computed(self, run, extras, *values, **kwargs):
        """LossOutput of what run(name, options, extras, *values) of the engine gives: the loss,
        float64, through which gradients flow back once."""
        options = json.dumps(self.engine_options(**kwargs))
        run = functools.partial(run, self.table_name, options, extras)
        return {"loss": _function().apply(run, *values), "num_tokens": 0}


class EngineLoss(TableLoss):
    """Base of the losses of whole batches that the engine computes with the decoder's pass, in
    float64."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "table_name" in vars(cls):
            cls.engine_name = cls.table_name

    def _call(self, inputs, outputs, **kwargs):
        """LossOutput of labels and logps [B, L], through which gradients flow back once, and of
        entropies [B, L] with require_entropy. Arguments: the class says which. InvalidError: as the
        class says, and as twinkle.loss.labels."""
        inputs, outputs = by_hand(self, inputs, outputs)
        mask = scored(inputs, f"loss: {type(self).__name__}")
        names = ("logps", "entropies") if self.require_entropy else ("logps",)
        extras = self.engine_inputs(inputs, **kwargs)
        return self._of_labels(mask, extras, *(outputs[name] for name in names), **kwargs)

    def _of_labels(self, mask, extras, *values, **kwargs):
        """LossOutput of the labels of mask [B, L] and values [B, L]."""
        run = functools.partial(core().run_loss, mask=mask)
        return self._computed(run, extras, *values, **kwargs)


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


@functools.cache
def _function():
    import torch  # here: to import twinkle.loss takes no torch

    class EngineFunction(torch.autograd.Function):
        """run(*values) is the loss and its gradients by them; None: there is none."""

        @staticmethod
        def forward(ctx, run, *values):
            value, *grads = run(*values)
            ctx.save_for_backward(*grads)
            return torch.tensor(value, dtype=torch.float64)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, upstream):
            return None, *(None if g is None else upstream * g for g in ctx.saved_tensors)

    return EngineFunction
