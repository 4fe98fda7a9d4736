"""Losses of preferences: pairs of a chosen and a rejected reply, adjacent in a batch, or replies
that are desirable or not.

Notation: w is the chosen reply, l the rejected one, of a pair; lw and ll are the sums of log p over
their labels, rw and rl the same of a reference model. The engine computes them, in float64.
"""

from twinkle import checks
from twinkle.errors import require
from twinkle.loss.engine import EngineLoss
from twinkle.loss.labels import of_pairs, reference, scored, spread

_REFERENCES = ("ref_outputs", "ref_logps", "ref_chosen_logps", "ref_rejected_logps")


class Replies:
    """The labels of sequences, which are pairs unless `paired` is False. reader: who reads them,
    such as 'loss: DPOLoss'. InvalidError: an odd number of pairs' sequences, one without labels, as
    scored."""

    def __init__(self, inputs, reader, paired=True):
        self.inputs, self.reader, self.mask = inputs, reader, scored(inputs, reader)
        pairs, odd = divmod(len(self.mask), 2)
        require(
            not (paired and odd),
            f"{reader} needs pairs, each chosen reply followed by its rejected one, but there are "
            f"{2 * pairs + 1} sequences: pass an even number of them",
        )
        empty = (self.mask.sum(-1) == 0).nonzero().flatten().tolist()
        require(
            not empty,
            f"{reader} compares replies, but inputs{empty[:1]} has no label: every reply must "
            "have one",
        )

    def sums(self, logps):
        """[B] float64 of log p [B, L] over the labels of each sequence."""
        import torch

        return torch.where(self.mask, logps.double(), 0.0).sum(-1)

    def reference_sums(self, **given):
        """The reference's sums [B] float64, of what `references` takes; None without any.
        InvalidError: as it."""
        given = {name: given[name] for name in _REFERENCES if given.get(name) is not None}
        if not given:
            return None
        (values,) = self.references(**given).values()
        return values.sum(-1) if values.ndim == 2 else values

    def references(self, ref_outputs=None, ref_logps=None, **of_pairs_given):
        """{'ref_logps': [B, L]} or {'ref_sums': [B]} of a reference, float64, the latter of
        ref_chosen_logps and ref_rejected_logps. InvalidError: there are none, one of the two is
        missing, and as at_labels and of_pairs."""
        import torch

        *_, chosen, rejected = _REFERENCES
        given = {name: of_pairs_given.get(name) for name in (chosen, rejected)}
        missing = [name for name in given if given[name] is None]
        if len(missing) == 2:
            of_labels = reference(self.reader, ref_logps, ref_outputs)
            return {"ref_logps": spread(*of_labels, self.inputs, self.mask)}
        require(
            not missing,
            f"loss: {''.join(missing)} is missing, pass both of {chosen} and {rejected}",
        )
        sums = [of_pairs(name, values, len(self.mask) // 2) for name, values in given.items()]
        return {"ref_sums": torch.stack(sums, -1).flatten()}


class _PreferenceLoss(EngineLoss):
    row_arguments = ("ref_outputs", "ref_logps")  # scripts pass them to any loss of preferences

    def engine_inputs(self, inputs, **kwargs):
        del kwargs
        Replies(inputs, f"loss: {type(self).__name__}")  # checks them
        return {}


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

    row_arguments = _REFERENCES

    def _set(self, **options):
        super()._set(**options)
        require(
            self.label_smoothing == 0 or self.loss_type == "sigmoid",
            f"loss: label_smoothing is {self.label_smoothing}, but loss_type {self.loss_type!r} "
            "has none: leave it out, or use 'sigmoid'",
        )

    def engine_inputs(self, inputs, **references):
        replies = Replies(inputs, f"loss: {type(self).__name__}")
        return {} if self.reference_free else replies.references(**references)


class SimPOLoss(_PreferenceLoss):
    """Simple preference optimization (Meng et al. 2024, arXiv 2405.14734, eq. 6):
    -log sigmoid(beta (lw / |w| - ll / |l|) - gamma), |w| and |l| being numbers of labels.
    InvalidError: beta not above 0, a gamma that is no number."""


class CPOLoss(_PreferenceLoss):
    """Contrastive preference optimization (Xu et al. 2024, arXiv 2401.08417, eq. 5):
    -log sigmoid(beta (lw - ll)), and bc_coef times the chosen replies' -log p, a mean over their
    labels. InvalidError: beta not above 0, a negative bc_coef."""


class ORPOLoss(_PreferenceLoss):
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

    row_arguments = ("desirable", "ref_outputs", "ref_logps")

    def engine_inputs(self, inputs, desirable=None, ref_outputs=None, ref_logps=None):
        import torch

        replies = Replies(inputs, "loss: KTOLoss", paired=False)
        require(
            hasattr(desirable, "__len__") and len(desirable) == len(replies.mask),
            "loss: KTOLoss needs desirable, for each sequence True, False, or None of a reply to "
            f"another prompt; for {len(replies.mask)} sequences it is {checks.short(desirable)}",
        )
        marks = [
            -1.0 if one is None else float(checks.flag(f"loss: desirable[{i}]", one))
            for i, one in enumerate(desirable)
        ]
        return {"desirable": torch.tensor(marks), **replies.references(ref_outputs, ref_logps)}
