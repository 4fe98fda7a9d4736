"""Losses of preferences: pairs of a chosen and a rejected reply, adjacent in a batch, or replies
that are desirable or not.

Notation: w is the chosen reply, l the rejected one, of a pair; lw and ll are the sums of log p over
their labels, rw and rl the same of a reference model. The engine computes them, in float64.
"""

from twinkle.core import core
from twinkle.loss.engine import EngineLoss
from twinkle.loss.labels import scored


class Replies:
    """Pairs of replies in a batch. reader: who reads them, such as 'metric: DPOMetric'.
    InvalidError: an odd number of sequences, one without labels, as scored."""

    def __init__(self, inputs, reader):
        self.inputs, self.reader, self.mask = inputs, reader, scored(inputs, reader, "pairs")

    def sums(self, logps):
        """[B] float64 of log p [B, L] over the labels of each sequence."""
        import torch

        return torch.where(self.mask, logps.double(), 0.0).sum(-1)

    def reference_sums(self, **given):
        """The reference's sums [B] float64, of those of `given` that DPOLoss takes; None without
        any. InvalidError: as DPOLoss."""
        names = DPOLoss.row_arguments
        given = {name: given[name] for name in names if given.get(name) is not None}
        if not given:
            return None
        (values,) = core().loss_extras("DPOLoss", "", self.inputs, given, self.reader).values()
        return values.sum(-1) if values.ndim == 2 else values


class DPOLoss(EngineLoss):
    """Direct preference optimization (Rafailov et al. 2023, arXiv 2305.18290, eq. 7), the mean over
    pairs. With D = (lw - ll) - (rw - rl), loss_type:

    'sigmoid': -(1 - s) log sigmoid(beta D) - s log sigmoid(-beta D), s being label_smoothing;
    'hinge': max(0, 1 - beta D) (Zhao et al. 2023, arXiv 2305.10425);
    'ipo': (beta D - 1 / (2 beta))^2, as in ModelScope's Twinkle: of sums, with beta in the margin.
    Azar et al. 2023 (arXiv 2310.12036, eq. 17) have (D - 1 / (2 beta))^2;
    'kto_pair': 1 - sigmoid(beta (lw - rw)) + sigmoid(beta (ll - rl)), a pair's form of KTO
    (Ethayarajh et al. 2024, arXiv 2402.01306).
    sft_weight: of the chosen replies' -log p, a mean over their labels, which is added.
    reference_free: rw and rl are 0. InvalidError: another loss_type, beta not above 0,
    label_smoothing outside [0, 0.5] or of another loss_type than 'sigmoid', a negative sft_weight.

    A call's arguments are the reference's log-probabilities: ref_outputs, what its forward_only
    returned; or ref_logps of each label or position of every sequence; or ref_chosen_logps and
    ref_rejected_logps, the sums rw and rl [B / 2]. InvalidError: none of them, an odd number of
    sequences, one without labels, and as twinkle.loss.labels.
    """


class SimPOLoss(EngineLoss):
    """Simple preference optimization (Meng et al. 2024, arXiv 2405.14734, eq. 6):
    -log sigmoid(beta (lw / |w| - ll / |l|) - gamma), |w| and |l| being numbers of labels.
    InvalidError: beta not above 0, a gamma that is no number."""


class CPOLoss(EngineLoss):
    """Contrastive preference optimization (Xu et al. 2024, arXiv 2401.08417, eq. 5):
    -log sigmoid(beta (lw - ll)), and bc_coef times the chosen replies' -log p, a mean over their
    labels. InvalidError: beta not above 0, a negative bc_coef."""


class ORPOLoss(EngineLoss):
    """Odds ratio preference optimization (Hong et al. 2024, arXiv 2403.07691, eq. 6): the chosen
    replies' -log p, a mean over their labels, and lambda_orpo times -log sigmoid(log odds(w) -
    log odds(l)), odds(y) = p / (1 - p) of p = exp(mean log p). InvalidError: a negative
    lambda_orpo."""


class KTOLoss(EngineLoss):
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024, arXiv 2402.01306, eq. 8) of single
    replies, with TRL's weights. r is what a reply's sum of log p gained over the reference:
    desirable_weight (1 - sigmoid(beta (r - z))) of a desirable reply, undesirable_weight
    (1 - sigmoid(beta (z - r))) of another one, the mean over both.

    z is a constant. baseline 'mismatched': the mean r of replies to other prompts, at least 0; each
    batch has some, such as every prompt with the next one's reply, and they teach nothing. 'zero':
    0, without them. A call's arguments: desirable, for each sequence True, False, or None where it
    is a reply to another prompt; ref_outputs or ref_logps, as DPOLoss. InvalidError: no desirable
    or reference, a baseline without its replies or with needless ones, beta not above 0, a negative
    weight, and as twinkle.loss.labels.
    """
