"""Metrics that the engine computes, by the names of their classes here."""

from collections.abc import Mapping

from twinkle.core import core
from twinkle.loss.contrastive import anchors
from twinkle.metric.base import Metric


class EngineMetric(Metric):
    """Base of the engine's metrics. options: the metric's own, which are attributes, too.
    InvalidError: one that it does not have, or that is out of its range."""

    def __init__(self, device_mesh=None, process_group=None, **options):
        super().__init__(device_mesh, process_group)
        ours = [cls.__name__ for cls in type(self).__mro__ if cls.__module__.startswith("twinkle.")]
        self._engine = core().Metric(ours[0], options)
        vars(self).update(options)

    def accumulate(self, inputs, outputs, **kwargs):
        """Takes of inputs, outputs and kwargs what the class says. InvalidError: tensors that do
        not fit together."""
        inputs = inputs if isinstance(inputs, Mapping) else {}
        self._engine.accumulate({**kwargs, **inputs, **(outputs or {})})

    def on_step(self, *, grad_norm=None, lr=None, iters=0, **kwargs):
        """Takes what an optimizer step tells."""
        self._engine.on_step(grad_norm, lr, iters)

    def calculate(self):
        """{name: number}; the class says which names there are."""
        return self._engine.calculate()

    def reset(self):
        """Forgets what was collected, but not the grad_norm and the lr of the last step."""
        self._engine.reset()


class LossMetric(EngineMetric):
    """loss: mean per token since the last calculate (of mean losses: mean per call); num_tokens:
    labels that it is over; grad_norm: of the last step, before clipping.

    accumulate takes loss and num_tokens of the outputs, and loss_tokens, what the loss is a sum
    over, and grad_norm by name. Without loss_tokens, as where a script calls this: num_tokens, or
    the labels, with loss_reduction='sum', and 1 otherwise.
    """

    needs_inputs = False


class TrainMetric(EngineMetric):
    """lr (also as 'learning rate'): of the last step, or the first; of several, as a script may
    give them, 'learning rate(param group 1)' and so on; iters: optimizer steps so far;
    'total time elapse': seconds since the first batch; speed: steps per second and tokens/s:
    tokens per second, both since the last calculate.

    accumulate takes seq_tokens, started and lr as a model gives them; of a script's own call, which
    has no started, step divided by gradient_accumulation_steps are the iters.
    """

    needs_inputs = False


class Accuracy(EngineMetric):
    """accuracy: the share of labels that are the model's likeliest token; correct_tokens and
    total_tokens: what it is a share of. Nothing where there are no labels.

    The likeliest tokens cost a pass of their own for every batch, without dropout: add it to
    evaluation alone, add_metric('Accuracy', is_training=False), where that is too slow.
    """

    needs_predictions = True

    def accumulate(self, inputs, outputs, **kwargs):
        """inputs: labels [B, L] or [L], and completion_mask of that shape where only some are to
        count; outputs: predictions of that shape, or logits [..., V]; without both, nothing counts.
        InvalidError: another shape, a list."""
        if outputs.get("predictions") is None and outputs.get("logits") is not None:
            outputs = {"predictions": outputs["logits"].argmax(-1)}
        super().accumulate(inputs, outputs)


class EmbeddingMetric(EngineMetric):
    """Since the last calculate: pos_sim, pos_sim_min, pos_sim_max: the cosine similarities of
    anchors to their positives; neg_sim: the mean of those to the positives of other groups of the
    same call; loss: the mean of the calls'; grad_norm: of the last step, before clipping. Groups
    are as InfonceLoss has them; calls without embeddings count nothing."""

    reads = "embeddings"

    def check(self, inputs, **kwargs):
        """InvalidError: as twinkle.loss.contrastive.anchors."""
        return anchors(inputs, "metric: EmbeddingMetric")

    def accumulate(self, inputs, outputs, **kwargs):
        """inputs: labels, as InfonceLoss has them; outputs: embeddings [B, D], or in their place
        logits [B, D] or, of which the first is taken, [B, L, D]; and the loss. InvalidError: as
        twinkle.loss.contrastive.anchors."""
        embeddings = outputs.get("embeddings")
        if embeddings is None and "logps" not in outputs:
            embeddings = outputs.get("logits")
        if embeddings is not None:
            groups = {"anchors": self.check(inputs), "embeddings": embeddings}
            super().accumulate(groups, {"loss": outputs.get("loss")})


class RewardMetric(EngineMetric):
    """Means over pairs of a chosen and a rejected reply, adjacent in a batch, since the last
    calculate, of the scores that a head of one label gives: rewards/chosen, rewards/rejected,
    rewards/margins, their difference, and rewards/accuracies, the percentage of pairs whose margin
    is above 0. accumulate takes logits [B, 1] of the outputs; outputs without such scores count
    nothing."""

    reads = "logits"
    needs_inputs = False
