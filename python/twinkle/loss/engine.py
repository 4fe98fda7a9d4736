"""Losses that the compiled engine computes: in training with the decoder's own pass, and here."""

import functools
import json

from twinkle.core import core
from twinkle.loss.base import Loss
from twinkle.loss.labels import scored


class EngineLoss(Loss):
    """Base of the engine's losses of whole batches. A subclass has engine_name, the names of the
    attributes that are options, engine_inputs, and a __call__ that passes its arguments on to
    _compute, by name. In float64."""

    whole_batch = True
    option_names = ()

    def engine_options(self, **kwargs):
        del kwargs
        return {name: getattr(self, name) for name in self.option_names}

    def _compute(self, inputs, outputs, **kwargs):
        """LossOutput of labels and logps [B, L], through which gradients flow back once, and of
        entropies [B, L] with require_entropy."""
        mask = scored(inputs, f"loss: {type(self).__name__}")
        return {"loss": computed(self, inputs, outputs, mask, kwargs), "num_tokens": 0}


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
    return _function().apply(run, logps, entropies)


@functools.cache
def _function():
    import torch  # here: to import twinkle.loss takes no torch

    class EngineFunction(torch.autograd.Function):
        """run(logps [N], entropies [N] or None) is the loss and its gradients by both."""

        @staticmethod
        def forward(ctx, run, logps, entropies):
            given = [None if x is None else x.detach().numpy() for x in (logps, entropies)]
            value, *grads = run(*given)
            ctx.save_for_backward(*(None if g is None else torch.from_numpy(g) for g in grads))
            return torch.tensor(value, dtype=torch.float64)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, upstream):
            return None, *(None if g is None else upstream * g for g in ctx.saved_tensors)

    return EngineFunction
