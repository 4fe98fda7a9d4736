"""Losses of reinforcement learning: a policy's tokens, weighed by advantages.

Notation: lp is log p of a label, r = exp(lp - old) the ratio to the policy that sampled it, with
lp - old within +-20, A its advantage. All are computed in float64.
"""

from twinkle import checks
from twinkle.errors import InvalidError
from twinkle.loss.base import Loss
from twinkle.loss.labels import check_ignore_index, reference, scored, spread

_MOST_LOG_RATIO = 20.0


class GRPOLoss(Loss):
    """Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300, eq. 3):
    -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + beta KL - entropy_coef H, the mean over
    each sequence's labels, then over the sequences. KL = exp(ref - lp) - (ref - lp) - 1, H is the
    entropy in nats.

    epsilon_high: epsilon where it is None. InvalidError: a negative coefficient.
    """

    whole_batch = True

    def __init__(
        self, epsilon=0.2, epsilon_high=None, beta=0.0, entropy_coef=0.0, ignore_index=-100
    ):
        check_ignore_index(ignore_index)
        self.epsilon = checks.number("loss: epsilon", epsilon, least=0)
        epsilon_high = epsilon if epsilon_high is None else epsilon_high
        self.epsilon_high = checks.number("loss: epsilon_high", epsilon_high, least=0)
        self.beta = checks.number("loss: beta", beta, least=0)
        self.entropy_coef = checks.number("loss: entropy_coef", entropy_coef, least=0)
        self.require_entropy = self.entropy_coef > 0

    def __call__(
        self, inputs, outputs, old_logps=None, advantages=None, ref_logps=None, ref_outputs=None
    ):
        """LossOutput of labels and logps [B, L].

        Of advantages, old_logps and ref_logps each sequence has one number, or one for each of its
        labels or positions. old_logps None: the policy itself sampled, r is 1. ref_outputs: what
        the reference's forward_only returned, in place of ref_logps. InvalidError: no advantages,
        beta without a reference, and as twinkle.loss.labels.
        """
        import torch

        name = f"loss: {type(self).__name__}"
        if advantages is None:
            raise InvalidError(
                f"{name} needs advantages: pass advantages=[...], one for each sequence; "
                "to score without learning call forward_only"
            )
        mask = scored(inputs, name)
        logps = outputs["logps"].double()
        old = logps.detach()
        if old_logps is not None:
            old = spread("old_logps", old_logps, inputs, mask)
        difference = torch.where(mask, logps - old, 0.0).clamp(-_MOST_LOG_RATIO, _MOST_LOG_RATIO)
        ratio = self._log_ratio(difference, mask).exp()
        each = self._of_tokens(ratio, spread("advantages", advantages, inputs, mask), logps)
        if self.beta > 0:
            gap = spread(*reference(name, ref_logps, ref_outputs), inputs, mask) - logps
            each = each + self.beta * (gap.exp() - gap - 1)
        if self.entropy_coef > 0:
            each = each - self.entropy_coef * outputs["entropies"].double()
        return {"loss": self._mean(torch.where(mask, each, 0.0), mask), "num_tokens": 0}

    def _log_ratio(self, difference, mask):
        """[B, L] or [B, 1] of lp - old [B, L], which is 0 where no label counts."""
        del mask
        return difference

    def _of_tokens(self, ratio, advantages, logps):
        """Each label's loss [B, L]."""
        import torch

        del logps
        clipped = ratio.clamp(1 - self.epsilon, 1 + self.epsilon_high)
        return -torch.minimum(ratio * advantages, clipped * advantages)

    def _mean(self, each, mask):
        """The loss of each label's [B, L]."""
        return of_sequences(each, mask).mean()


def of_sequences(each, mask):
    """[B]: the mean over each sequence's labels, 0 where it has none."""
    return each.sum(-1) / mask.sum(-1).clamp(min=1)


def of_labels(each, mask):
    """The mean over all labels."""
    return each.sum() / mask.sum().clamp(min=1)


class PPOLoss(GRPOLoss):
    """Proximal policy optimization's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347,
    eq. 7): GRPOLoss's terms, averaged over all labels of the batch ('token-mean'), or over each
    sequence's and then over sequences ('seq-mean-token-mean'). InvalidError: another
    loss_agg_mode, and as GRPOLoss."""

    def __init__(
        self,
        epsilon=0.2,
        epsilon_high=None,
        beta=0.0,
        entropy_coef=0.0,
        loss_agg_mode="token-mean",
        ignore_index=-100,
    ):
        super().__init__(epsilon, epsilon_high, beta, entropy_coef, ignore_index)
        if loss_agg_mode not in ("token-mean", "seq-mean-token-mean"):
            checks.refuse(
                "loss: loss_agg_mode", loss_agg_mode, "'token-mean' or 'seq-mean-token-mean'"
            )
        self.loss_agg_mode = loss_agg_mode

    def _mean(self, each, mask):
        if self.loss_agg_mode == "token-mean":
            return of_labels(each, mask)
        return super()._mean(each, mask)


class GSPOLoss(GRPOLoss):
    """Group sequence policy optimization (Zheng et al. 2025, arXiv 2507.18071):
    GRPOLoss with one ratio for a sequence, the exponential of its mean lp - old."""

    def _log_ratio(self, difference, mask):
        return of_sequences(difference, mask)[:, None]


class SAPOLoss(GRPOLoss):
    """Soft adaptive policy optimization (arXiv 2511.20347): -sigmoid(tau (r - 1)) 4 / tau A in
    place of the clip, tau being tau_pos where A > 0, and tau_neg elsewhere; averaged as GRPOLoss.

    epsilon: as upstream's signature has it; nothing is clipped, so it has no effect. InvalidError:
    a tau that is not above 0, and as GRPOLoss.
    """

    def __init__(
        self, epsilon=0.2, beta=0.0, tau_pos=1.0, tau_neg=1.0, entropy_coef=0.0, ignore_index=-100
    ):
        super().__init__(epsilon, None, beta, entropy_coef, ignore_index)
        self.tau_pos = checks.number("loss: tau_pos", tau_pos, above=0)
        self.tau_neg = checks.number("loss: tau_neg", tau_neg, above=0)

    def _of_tokens(self, ratio, advantages, logps):
        import torch

        del logps
        taus = torch.tensor([self.tau_neg, self.tau_pos], dtype=torch.float64)
        tau = taus[(advantages > 0).long()]
        return -torch.sigmoid(tau * (ratio - 1)) * (4 / tau) * advantages


class CISPOLoss(GRPOLoss):
    """Clipped importance sampling policy optimization (MiniMax 2025, arXiv 2506.13585):
    -min(r, 1 + epsilon_high) A lp, the first factor taken as a constant, so that every label
    learns; averaged over all labels of the batch. As in the paper's runs, r has no lower limit."""

    def __call__(
        self,
        inputs,
        outputs,
        old_logps=None,
        advantages=None,
        ref_logps=None,
        ref_outputs=None,
        num_items_in_batch=None,
    ):
        """As GRPOLoss. num_items_in_batch: what the sum over labels is divided by, in place of
        their number. InvalidError: as GRPOLoss, or num_items_in_batch below 1."""
        divisor = checks.integer("loss: num_items_in_batch", num_items_in_batch, least=1, none=True)
        out = super().__call__(inputs, outputs, old_logps, advantages, ref_logps, ref_outputs)
        if divisor is not None:
            out["loss"] = out["loss"] * (int(scored(inputs, "loss: CISPOLoss").sum()) / divisor)
        return out

    def _of_tokens(self, ratio, advantages, logps):
        return -ratio.detach().clamp(max=1 + self.epsilon_high) * advantages * logps

    def _mean(self, each, mask):
        return of_labels(each, mask)


class BNPOLoss(GRPOLoss):
    """GRPOLoss's terms, averaged over all labels of the batch, as TRL's loss_type 'bnpo' and the
    token-level loss of DAPO (Yu et al. 2025, arXiv 2503.14476)."""

    def _mean(self, each, mask):
        return of_labels(each, mask)


class DRGRPOLoss(GRPOLoss):
    """Dr. GRPO (Liu et al. 2025, arXiv 2503.20783): GRPOLoss's terms, their sum divided by the
    number of sequences times max_completion_length, in tokens, so that long replies count as much
    a token as short ones. InvalidError: max_completion_length below 1, and as GRPOLoss."""

    def __init__(
        self,
        epsilon=0.2,
        beta=0.0,
        max_completion_length=1024,
        epsilon_high=None,
        entropy_coef=0.0,
        ignore_index=-100,
    ):
        super().__init__(epsilon, epsilon_high, beta, entropy_coef, ignore_index)
        self.max_completion_length = checks.integer(
            "loss: max_completion_length", max_completion_length, least=1
        )

    def _mean(self, each, mask):
        return each.sum() / (len(mask) * self.max_completion_length)
