"""Losses that learn through logits: a teacher's distribution, or its logits themselves."""

from twinkle.core import core
from twinkle.errors import InvalidError, require
from twinkle.loss.base import Loss, by_hand
from twinkle.loss.engine import TableLoss
from twinkle.loss.labels import at_labels, scored


class GKDLoss(TableLoss):
    """Generalized knowledge distillation (Agarwal et al. 2023, arXiv 2306.13649): a divergence of
    the student S and a teacher T over the vocabulary, the mean over labels. beta 0: KL(T || S);
    beta 1: KL(S || T); between them beta KL(T || M) + (1 - beta) KL(S || M) with the mixture
    M = beta T + (1 - beta) S.

    temperature: what both sides' logits are divided by before. chunk_size: labels whose divergence
    is computed at a time; it bounds memory, not the numbers, beyond the order of a sum. topk: of
    teacher_logits only the teacher's K likeliest tokens count, unless a call says otherwise. The
    logits of a call, B x L x V with the padding, take 1 GiB at most, whatever chunk_size and
    micro_batch_size are: 5,461 positions of a vocabulary of 49,152.
    InvalidError: beta outside [0, 1], a temperature not above 0, chunk_size or topk below 1.
    """

    require_logits = True
    arguments = ("beta", "temperature", "chunk_size", "ignore_index", "topk")

    def _call(self, inputs, outputs, **teacher):
        """LossOutput of labels [B, L] and logits [B, L, V].

        teacher_logits: [B, L, V], as forward_only(return_logits=True) gives them; with topk only
        the teacher's K likeliest tokens count. Or teacher_topk_logprobs and teacher_topk_indices
        [B, L, K], as a sampler gives them, moved so that position t has what follows it. Of K
        tokens both distributions are renormalised to sum to 1. -inf: a token that the teacher never
        takes. InvalidError: no teacher or two, no labels, another vocabulary, topk or an index
        beyond it, nan, inf, a label of which all is -inf, -inf with beta 1, and as
        twinkle.loss.labels.
        """
        inputs, outputs = by_hand(self, inputs, outputs)
        extras = self.engine_inputs(inputs, **teacher)
        logits = outputs["logits"][scored(inputs, "loss: GKDLoss")]
        return self._computed(core().run_vector_loss, extras, logits, **teacher)


class MSELoss(Loss):
    """The mean of (logits - targets)^2 over the labels that count and the vocabulary: distillation
    by logits (Ba and Caruana 2014, arXiv 1312.6184, eq. 1)."""

    require_logits = True
    whole_batch = True
    row_arguments = ("targets",)

    def __call__(self, inputs, outputs, targets=None):
        """LossOutput of logits [B, L, V] and targets [B, L, V], or inputs' labels where they are
        of that shape: those of a language model are tokens. InvalidError: no targets or labels, or
        of another shape, and as twinkle.loss.labels."""
        logits, labels = outputs["logits"], inputs["labels"]
        if targets is None and labels.shape == logits.shape:
            return {"loss": (logits - labels).double().square().mean(), "num_tokens": 0}
        if targets is None:
            raise InvalidError(
                f"loss: MSELoss compares logits of shape {list(logits.shape)} with labels of shape "
                f"{list(labels.shape)}: pass targets=[...] of the logits' shape, such as "
                "teacher.forward_only(inputs=..., return_logits=True)['logits']"
            )
        inputs, outputs = by_hand(self, inputs, outputs)
        mask = scored(inputs, "loss: MSELoss", "some")
        targets = at_labels("targets", targets, inputs, mask, "floats")
        logits = outputs["logits"][mask]
        require(
            targets.shape == logits.shape,
            f"loss: targets have {targets.shape[1]} tokens, the logits {logits.shape[1]}: "
            "they must be equally many",
        )
        return {"loss": (logits - targets).double().square().mean(), "num_tokens": 0}
