"""Losses that learn through logits: a teacher's distribution, or its logits themselves."""

from twinkle import checks
from twinkle.errors import InvalidError, require
from twinkle.loss.base import Loss
from twinkle.loss.labels import at_labels, check_ignore_index, scored


class GKDLoss(Loss):
    """Generalized knowledge distillation (Agarwal et al. 2023, arXiv 2306.13649): a divergence of
    the student S and a teacher T over the vocabulary, the mean over labels. beta 0: KL(T || S);
    beta 1: KL(S || T); between them beta KL(T || M) + (1 - beta) KL(S || M) with the mixture
    M = beta T + (1 - beta) S.

    temperature: what both sides' logits are divided by before. chunk_size: labels whose divergence
    is computed at a time; it bounds memory, not the numbers, beyond the order of a sum. The logits
    of a call, B x L x V with the padding, take 1 GiB at most, whatever chunk_size and
    micro_batch_size are: 5,461 positions of a vocabulary of 49,152.
    InvalidError: beta outside [0, 1], a temperature not above 0, chunk_size below 1.
    """

    require_logits = True
    whole_batch = True
    row_arguments = ("teacher_logits", "teacher_topk_logprobs", "teacher_topk_indices")

    def __init__(self, beta=0.5, temperature=1.0, chunk_size=512, ignore_index=-100):
        check_ignore_index(ignore_index)
        self.beta = checks.number("loss: beta", beta, least=0)
        require(self.beta <= 1, f"loss: beta is {beta}, it must be from 0 to 1")
        self.temperature = checks.number("loss: temperature", temperature, above=0)
        self.chunk_size = checks.integer("loss: chunk_size", chunk_size, least=1)

    def __call__(
        self,
        inputs,
        outputs,
        teacher_logits=None,
        teacher_topk_logprobs=None,
        teacher_topk_indices=None,
        topk=None,
    ):
        """LossOutput of labels [B, L] and logits [B, L, V].

        teacher_logits: [B, L, V], as forward_only(return_logits=True) gives them; with topk only
        the teacher's K likeliest tokens count. Or teacher_topk_logprobs and teacher_topk_indices
        [B, L, K], as a sampler gives them, moved so that position t has what follows it. Of K
        tokens both distributions are renormalised to sum to 1. -inf: a token that the teacher never
        takes. InvalidError: no teacher or two, no labels, another vocabulary, topk or an index
        beyond it, nan, inf, a label of which all is -inf, -inf with beta 1, and as
        twinkle.loss.labels.
        """
        import torch
        from torch.utils.checkpoint import checkpoint

        mask = _some_scored(inputs, "loss: GKDLoss")
        student = outputs["logits"][mask]
        pair = teacher_topk_logprobs, teacher_topk_indices
        if teacher_logits is not None:
            require(
                all(given is None for given in pair),
                "loss: teacher_logits and teacher_topk_... are given, pass one teacher",
            )
            teacher = at_labels("teacher_logits", teacher_logits, inputs, mask, "logits")
            student, teacher = _likeliest(student, teacher, topk)
        else:
            require(topk is None, "loss: topk goes with teacher_logits, leave it out")
            student, teacher = _given(student, pair, inputs, mask)
        require(
            self.beta < 1 or not teacher.isneginf().any(),
            f"loss: beta is {self.beta}, KL(S || T), which is infinite where the teacher has -inf: "
            "use a beta below 1, or finite logits",
        )
        total = torch.zeros((), dtype=torch.float64)
        for begin in range(0, len(student), self.chunk_size):
            part = slice(begin, begin + self.chunk_size)
            # only the logits stay for the backward, which computes a chunk's distributions again
            total = total + checkpoint(
                self._divergence, student[part], teacher[part], use_reentrant=False
            )
        return {"loss": total / len(student), "num_tokens": 0}

    def _divergence(self, student, teacher):
        """The loss of logits [N, K], summed over rows."""
        import torch

        s = torch.log_softmax(student.double() / self.temperature, -1)
        t = torch.log_softmax(teacher.double() / self.temperature, -1)
        if self.beta == 0:
            return _kl(t, s)
        if self.beta == 1:
            return _kl(s, t)
        weights = torch.tensor([self.beta, 1 - self.beta], dtype=torch.float64)
        mixture = torch.logsumexp(torch.stack([t, s], -1) + weights.log(), -1)
        return self.beta * _kl(t, mixture) + (1 - self.beta) * _kl(s, mixture)


def _some_scored(inputs, reader):
    """The mask of labels; of losses that read log-probabilities the engine refuses an empty one."""
    mask = scored(inputs, reader)
    require(
        bool(mask.any()),
        f"{reader} has no label to learn from, all are -100 (ignored) or missing",
    )
    return mask


def _kl(p, q):
    """KL(P || Q) of log-probabilities [N, K], the sum over rows; 0 where P is 0."""
    return (p.exp() * (p - q).masked_fill(p.isneginf(), 0.0)).sum()


def _likeliest(student, teacher, topk):
    """Logits [N, K] of the teacher's K likeliest tokens, all of them without topk."""
    vocabulary = student.shape[1]
    require(
        teacher.shape[1] == vocabulary,
        f"loss: teacher_logits have {teacher.shape[1]} tokens, the student's {vocabulary}: both "
        "models must share a vocabulary; cut off entries that only pad it",
    )
    if checks.integer("loss: topk", topk, least=1, most=vocabulary, none=True) is None:
        return student, teacher
    teacher, indices = teacher.topk(topk)
    return student.gather(-1, indices), teacher


def _given(student, pair, inputs, mask):
    """Logits [N, K] of the tokens that came with the teacher's log-probabilities."""
    if any(given is None for given in pair):
        raise InvalidError(
            "loss: GKDLoss needs a teacher: pass teacher_logits=teacher.forward_only(inputs=..., "
            "return_logits=True)['logits'], or teacher_topk_logprobs and teacher_topk_indices"
        )
    logprobs = at_labels("teacher_topk_logprobs", pair[0], inputs, mask, "logits")
    indices = at_labels("teacher_topk_indices", pair[1], inputs, mask, "integers")
    require(
        logprobs.shape == indices.shape,
        f"loss: teacher_topk_logprobs have {logprobs.shape[1]} entries a label, "
        f"teacher_topk_indices {indices.shape[1]}, they must be equally many",
    )
    odd = indices[(indices < 0) | (indices >= student.shape[1])].tolist()
    require(
        not odd,
        f"loss: teacher_topk_indices has {odd[:1]}, it must be a token of the student's "
        f"{student.shape[1]}",
    )
    return student.gather(-1, indices), logprobs


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
        mask = _some_scored(inputs, "loss: MSELoss")
        targets = at_labels("targets", targets, inputs, mask, "floats")
        logits = logits[mask]
        require(
            targets.shape == logits.shape,
            f"loss: targets have {targets.shape[1]} tokens, the logits {logits.shape[1]}: "
            "they must be equally many",
        )
        return {"loss": (logits - targets).double().square().mean(), "num_tokens": 0}
