"""Losses of preferences: pairs of a chosen and a rejected reply, adjacent in a batch.

Notation: w is the chosen reply, l the rejected one, of a pair; lw and ll are the sums of log p over
their labels, rw and rl the same of a reference model. The engine computes them, in float64.
"""

from twinkle import checks
from twinkle.errors import InvalidError, require
from twinkle.loss.engine import EngineLoss
from twinkle.loss.labels import check_ignore_index, of_pairs, reference, scored, spread


class Replies:
    """The labels of pairs of sequences. reader: who reads them, such as 'loss: DPOLoss'.
    InvalidError: an odd number of sequences, one without labels, as scored."""

    def __init__(self, inputs, reader):
        self.inputs, self.reader, self.mask = inputs, reader, scored(inputs, reader)
        pairs, odd = divmod(len(self.mask), 2)
        require(
            not odd,
            f"{reader} needs pairs, each chosen reply followed by its rejected one, but there are "
            f"{2 * pairs + 1} sequences: pass an even number of them",
        )
        empty = (self.mask.sum(-1) == 0).nonzero().flatten().tolist()
        if empty:
            raise InvalidError(
                f"{reader} compares replies, but inputs[{empty[0]}] has no label: every reply must "
                "have one"
            )

    def sums(self, logps):
        """[B] float64 of log p [B, L] over the labels of each sequence."""
        import torch

        return torch.where(self.mask, logps.double(), 0.0).sum(-1)

    def reference_sums(self, *given):
        """The reference's sums [B] float64, of what `references` takes. InvalidError: as it."""
        (values,) = self.references(*given).values()
        return values.sum(-1) if values.ndim == 2 else values

    def references(self, ref_outputs, ref_logps, ref_chosen_logps, ref_rejected_logps):
        """{'ref_logps': [B, L]} or {'ref_sums': [B]} of a reference, float64. InvalidError: there
        are none, one of the two of pairs is missing, and as at_labels and of_pairs."""
        import torch

        given_sums = {
            "ref_chosen_logps": ref_chosen_logps,
            "ref_rejected_logps": ref_rejected_logps,
        }
        missing = [name for name, given in given_sums.items() if given is None]
        if len(missing) == 2:
            name, given = reference(self.reader, ref_logps, ref_outputs)
            return {"ref_logps": spread(name, given, self.inputs, self.mask)}
        require(
            not missing,
            f"loss: {''.join(missing)} is missing, pass both of {' and '.join(given_sums)}",
        )
        pairs = len(self.mask) // 2
        sums = [of_pairs(name, given, pairs) for name, given in given_sums.items()]
        return {"ref_sums": torch.stack(sums, -1).flatten()}


class _PreferenceLoss(EngineLoss):
    row_arguments = ("ref_outputs", "ref_logps")

    def __call__(self, inputs, outputs, ref_outputs=None, ref_logps=None):
        """LossOutput of labels and logps [B, L]. ref_outputs and ref_logps, which scripts pass to
        any loss of preferences, are not looked at: this one has no reference. InvalidError: an odd
        number of sequences, one without labels, a loss_scale other than 0 and 1."""
        del ref_outputs, ref_logps
        return self._compute(inputs, outputs)

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
    """

    engine_name = "DPOLoss"
    row_arguments = ("ref_outputs", "ref_logps", "ref_chosen_logps", "ref_rejected_logps")
    option_names = ("beta", "label_smoothing", "loss_type", "reference_free", "sft_weight")

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
        return self._compute(
            inputs,
            outputs,
            ref_outputs=ref_outputs,
            ref_logps=ref_logps,
            ref_chosen_logps=ref_chosen_logps,
            ref_rejected_logps=ref_rejected_logps,
        )

    def engine_inputs(
        self,
        inputs,
        *,
        ref_outputs=None,
        ref_logps=None,
        ref_chosen_logps=None,
        ref_rejected_logps=None,
    ):
        replies = Replies(inputs, f"loss: {type(self).__name__}")
        if self.reference_free:
            return {}
        return replies.references(ref_outputs, ref_logps, ref_chosen_logps, ref_rejected_logps)


class SimPOLoss(_PreferenceLoss):
    """Simple preference optimization (Meng et al. 2024, arXiv 2405.14734, eq. 6):
    -log sigmoid(beta (lw / |w| - ll / |l|) - gamma), |w| and |l| being numbers of labels.
    InvalidError: beta not above 0, a gamma that is no number."""

    engine_name = "SimPOLoss"
    option_names = ("beta", "gamma")

    def __init__(self, beta=2.5, gamma=0.5, ignore_index=-100):
        check_ignore_index(ignore_index)
        self.beta = checks.number("loss: beta", beta, above=0)
        self.gamma = checks.number("loss: gamma", gamma)


class CPOLoss(_PreferenceLoss):
    """Contrastive preference optimization (Xu et al. 2024, arXiv 2401.08417, eq. 5):
    -log sigmoid(beta (lw - ll)), and bc_coef times the chosen replies' -log p, a mean over their
    labels. InvalidError: beta not above 0, a negative bc_coef."""

    engine_name = "CPOLoss"
    option_names = ("beta", "bc_coef")

    def __init__(self, beta=0.1, bc_coef=1.0, ignore_index=-100):
        check_ignore_index(ignore_index)
        self.beta = checks.number("loss: beta", beta, above=0)
        self.bc_coef = checks.number("loss: bc_coef", bc_coef, least=0)


class ORPOLoss(_PreferenceLoss):
    """Odds ratio preference optimization (Hong et al. 2024, arXiv 2403.07691, eq. 6): the chosen
    replies' -log p, a mean over their labels, and lambda_orpo times -log sigmoid(log odds(w) -
    log odds(l)), odds(y) = p / (1 - p) of p = exp(mean log p). InvalidError: a negative
    lambda_orpo."""

    engine_name = "ORPOLoss"
    option_names = ("lambda_orpo",)

    def __init__(self, lambda_orpo=0.1, ignore_index=-100):
        check_ignore_index(ignore_index)
        self.lambda_orpo = checks.number("loss: lambda_orpo", lambda_orpo, least=0)
