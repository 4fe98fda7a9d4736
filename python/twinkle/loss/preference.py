"""Losses of preferences: pairs of a chosen and a rejected reply, adjacent in a batch.

Notation: w is the chosen reply, l the rejected one, of a pair; lw and ll are the sums of log p over
their labels, rw and rl the same of a reference model. All are computed in float64.
"""

import math

from twinkle import checks
from twinkle.errors import InvalidError, require
from twinkle.loss.base import Loss
from twinkle.loss.labels import check_ignore_index, of_pairs, reference, scored, spread


class Replies:
    """The sums of log p over the labels of each sequence, [B] float64, and their numbers. reader:
    who reads them, such as 'loss: DPOLoss'. InvalidError: an odd number of sequences, one without
    labels."""

    def __init__(self, inputs, logps, reader):
        import torch

        self.inputs, self.reader, self.mask = inputs, reader, scored(inputs, reader)
        pairs, odd = divmod(len(self.mask), 2)
        require(
            not odd,
            f"{reader} needs pairs, each chosen reply followed by its rejected one, but there are "
            f"{2 * pairs + 1} sequences: pass an even number of them",
        )
        self.counts = self.mask.sum(-1)
        empty = (self.counts == 0).nonzero().flatten().tolist()
        if empty:
            raise InvalidError(
                f"{reader} compares replies, but inputs[{empty[0]}] has no label: every reply must "
                "have one"
            )
        self.sums = torch.where(self.mask, logps.double(), 0.0).sum(-1)

    def per_label(self):
        """[B]: the mean of log p."""
        return self.sums / self.counts

    def chosen_nll(self):
        """-log p of the chosen replies, the mean over all of their labels."""
        return -self.sums[::2].sum() / self.counts[::2].sum()

    def reference_sums(self, ref_outputs, ref_logps, ref_chosen_logps, ref_rejected_logps):
        """The reference's sums [B] float64. InvalidError: there are none, one of the two
        of pairs is missing, and as at_labels and of_pairs."""
        import torch

        given_sums = {
            "ref_chosen_logps": ref_chosen_logps,
            "ref_rejected_logps": ref_rejected_logps,
        }
        missing = [name for name, given in given_sums.items() if given is None]
        if len(missing) == 2:
            name, given = reference(self.reader, ref_logps, ref_outputs)
            return spread(name, given, self.inputs, self.mask).sum(-1)
        require(
            not missing,
            f"loss: {''.join(missing)} is missing, pass both of {' and '.join(given_sums)}",
        )
        pairs = len(self.mask) // 2
        sums = [of_pairs(name, given, pairs) for name, given in given_sums.items()]
        return torch.stack(sums, -1).flatten()


class _PreferenceLoss(Loss):
    whole_batch = True

    def __call__(self, inputs, outputs, ref_outputs=None, ref_logps=None):
        """LossOutput of labels and logps [B, L]. ref_outputs and ref_logps, which scripts pass to
        any loss of preferences, are not looked at: this one has no reference. InvalidError: an odd
        number of sequences, one without labels, a loss_scale other than 0 and 1."""
        del ref_outputs, ref_logps
        replies = Replies(inputs, outputs["logps"], f"loss: {type(self).__name__}")
        return {"loss": self._of(replies), "num_tokens": 0}

    def _of(self, replies):
        """The loss of Replies."""
        raise NotImplementedError


class DPOLoss(Loss):
    """Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290, eq. 7), the mean over
    pairs. With D = (lw - ll) - (rw - rl), loss_type:

    'sigmoid': -(1 - s) log sigmoid(beta D) - s log sigmoid(-beta D), s being label_smoothing;
    'hinge': max(0, 1 - beta D) (Zhao et al. 2023, arXiv 2305.10425);
    'ipo': (beta D - 1 / (2 beta))^2, upstream's form: of sums, with beta in the margin, where Azar
    et al. 2023 (arXiv 2310.12036, eq. 17) have (D - 1 / (2 beta))^2;
    'kto_pair': 1 - sigmoid(beta (lw - rw)) + sigmoid(beta (ll - rl)), a pair's form of KTO
    (Ethayarajh et al. 2024, arXiv 2402.01306).
    sft_weight: of the chosen replies' -log p, a mean over their labels, which is added.
    reference_free: rw and rl are 0. InvalidError: another loss_type, beta not above 0,
    label_smoothing outside [0, 0.5] or of another loss_type than 'sigmoid', a negative sft_weight.
    """

    whole_batch = True

    def __init__(
        self,
        beta=0.1,
        label_smoothing=0.0,
        loss_type="sigmoid",
        reference_free=False,
        sft_weight=0.0,
        ignore_index=-100,
    ):
        check_ignore_index(ignore_index)
        self.beta = checks.number("loss: beta", beta, above=0)
        if loss_type not in ("sigmoid", "hinge", "ipo", "kto_pair"):
            checks.refuse("loss: loss_type", loss_type, "'sigmoid', 'hinge', 'ipo' or 'kto_pair'")
        self.loss_type = loss_type
        self.label_smoothing = checks.number("loss: label_smoothing", label_smoothing, least=0)
        require(
            self.label_smoothing <= 0.5,
            f"loss: label_smoothing is {label_smoothing}, it must be at most 0.5: beyond, the "
            "rejected reply would be preferred",
        )
        require(
            self.label_smoothing == 0 or loss_type == "sigmoid",
            f"loss: label_smoothing is {label_smoothing}, but loss_type {loss_type!r} has none: "
            "leave it out, or use 'sigmoid'",
        )
        self.reference_free = checks.flag("loss: reference_free", reference_free)
        self.sft_weight = checks.number("loss: sft_weight", sft_weight, least=0)

    def __call__(
        self,
        inputs,
        outputs,
        ref_outputs=None,
        ref_logps=None,
        ref_chosen_logps=None,
        ref_rejected_logps=None,
    ):
        """LossOutput of labels and logps [B, L].

        The reference's log-probabilities: ref_outputs, what its forward_only returned; or ref_logps
        of each label or position of every sequence; or ref_chosen_logps and ref_rejected_logps, the
        sums rw and rl [B / 2]. InvalidError: none of them, an odd number of sequences, one without
        labels, and as twinkle.loss.labels.
        """
        import torch

        replies = Replies(inputs, outputs["logps"], "loss: DPOLoss")
        gains = replies.sums
        if not self.reference_free:
            gains = gains - replies.reference_sums(
                ref_outputs, ref_logps, ref_chosen_logps, ref_rejected_logps
            )
        rewards = self.beta * gains
        margins = rewards[::2] - rewards[1::2]
        if self.loss_type == "sigmoid":
            smooth = self.label_smoothing
            log_sigmoid = torch.nn.functional.logsigmoid
            each = -(1 - smooth) * log_sigmoid(margins) - smooth * log_sigmoid(-margins)
        elif self.loss_type == "hinge":
            each = torch.relu(1 - margins)
        elif self.loss_type == "ipo":
            each = (margins - 1 / (2 * self.beta)) ** 2
        else:
            each = 1 - torch.sigmoid(rewards[::2]) + torch.sigmoid(rewards[1::2])
        loss = each.mean()
        if self.sft_weight > 0:
            loss = loss + self.sft_weight * replies.chosen_nll()
        return {"loss": loss, "num_tokens": 0}


def _preferred(margins):
    """-log sigmoid of the margins, their mean (Bradley and Terry)."""
    import torch

    return -torch.nn.functional.logsigmoid(margins).mean()


class SimPOLoss(_PreferenceLoss):
    """Simple preference optimization (Meng et al. 2024, arXiv 2405.14734, eq. 6):
    -log sigmoid(beta (lw / |w| - ll / |l|) - gamma), |w| and |l| being numbers of labels.
    InvalidError: beta not above 0, a gamma that is no number."""

    def __init__(self, beta=2.5, gamma=0.5, ignore_index=-100):
        check_ignore_index(ignore_index)
        self.beta = checks.number("loss: beta", beta, above=0)
        self.gamma = checks.number("loss: gamma", gamma)

    def _of(self, replies):
        means = replies.per_label()
        return _preferred(self.beta * (means[::2] - means[1::2]) - self.gamma)


class CPOLoss(_PreferenceLoss):
    """Contrastive preference optimization (Xu et al. 2024, arXiv 2401.08417, eq. 5):
    -log sigmoid(beta (lw - ll)), and bc_coef times the chosen replies' -log p, a mean over their
    labels. InvalidError: beta not above 0, a negative bc_coef."""

    def __init__(self, beta=0.1, bc_coef=1.0, ignore_index=-100):
        check_ignore_index(ignore_index)
        self.beta = checks.number("loss: beta", beta, above=0)
        self.bc_coef = checks.number("loss: bc_coef", bc_coef, least=0)

    def _of(self, replies):
        margins = self.beta * (replies.sums[::2] - replies.sums[1::2])
        return _preferred(margins) + self.bc_coef * replies.chosen_nll()


class ORPOLoss(_PreferenceLoss):
    """Odds ratio preference optimization (Hong et al. 2024, arXiv 2403.07691, eq. 6): the chosen
    replies' -log p, a mean over their labels, and lambda_orpo times -log sigmoid(log odds(w) -
    log odds(l)), odds(y) = p / (1 - p) of p = exp(mean log p). InvalidError: a negative
    lambda_orpo."""

    def __init__(self, lambda_orpo=0.1, ignore_index=-100):
        check_ignore_index(ignore_index)
        self.lambda_orpo = checks.number("loss: lambda_orpo", lambda_orpo, least=0)

    def _of(self, replies):
        log_odds = _log_odds(replies.per_label())
        margins = log_odds[::2] - log_odds[1::2]
        return replies.chosen_nll() + self.lambda_orpo * _preferred(margins)


def _log_odds(log_p):
    """log(p / (1 - p)). The two forms of log(1 - p) are exact near p = 1 and near p = 0; p itself
    stays below 1, where the odds are infinite."""
    import torch

    log_p = log_p.clamp(max=-1e-12)
    near_one = log_p > -math.log(2)
    # where each form is not used it gets a harmless value, so that no gradient is nan
    exact = torch.log(-torch.expm1(torch.where(near_one, log_p, -1.0)))
    other = torch.log1p(-torch.exp(torch.where(near_one, -1.0, log_p)))
    return log_p - torch.where(near_one, exact, other)
