"""Losses of reinforcement learning: a policy's tokens, weighed by advantages.

Notation: lp is log p of a label, r = exp(lp - old) the ratio to the policy that sampled it, with
lp - old within +-20, A its advantage. The engine computes them, in float64.

A call's arguments: of advantages, old_logps and ref_logps each sequence has one number, or one for
each of its labels or positions. old_logps None: the policy itself sampled, r is 1. ref_outputs:
what the reference's forward_only returned, in place of ref_logps. InvalidError: no advantages, beta
without a reference, and as twinkle.loss.labels.
"""

from twinkle.loss.engine import EngineLoss


class GRPOLoss(EngineLoss):
    """Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300, eq. 3):
    -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + beta KL - entropy_coef H, the mean over
    each sequence's labels, then over the sequences. KL = exp(ref - lp) - (ref - lp) - 1, H is the
    entropy in nats.

    epsilon_high: epsilon where it is None. InvalidError: a negative coefficient.
    """

    @property
    def require_entropy(self):
        """True with an entropy_coef above 0."""
        return self.entropy_coef > 0


class PPOLoss(GRPOLoss):
    """Proximal policy optimization's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347,
    eq. 7): GRPOLoss's terms, averaged over all labels of the batch ('token-mean'), or over each
    sequence's and then over sequences ('seq-mean-token-mean'). InvalidError: another
    loss_agg_mode, and as GRPOLoss."""


class GSPOLoss(GRPOLoss):
    """Group sequence policy optimization (Zheng et al. 2025, arXiv 2507.18071):
    GRPOLoss with one ratio for a sequence, the exponential of its mean lp - old."""


class SAPOLoss(GRPOLoss):
    """Soft adaptive policy optimization (arXiv 2511.20347): -sigmoid(tau (r - 1)) 4 / tau A in
    place of the clip, tau being tau_pos where A > 0, and tau_neg elsewhere; averaged as GRPOLoss.

    epsilon, epsilon_high: ModelScope's Twinkle takes them; nothing is clipped, so they have no
    effect. InvalidError: a tau that is not above 0, and as GRPOLoss.
    """

    arguments = ("epsilon", "beta", "tau_pos", "tau_neg", "entropy_coef", "epsilon_high")


class CISPOLoss(GRPOLoss):
    """Clipped importance sampling policy optimization (MiniMax 2025, arXiv 2506.13585):
    -min(r, 1 + epsilon_high) A lp, the first factor taken as a constant, so that every label
    learns; averaged over all labels of the batch. As in the paper's runs, r has no lower limit.

    A call's num_items_in_batch: what the sum over labels is divided by, in place of their number.
    InvalidError: as GRPOLoss, or num_items_in_batch below 1.
    """

    arguments = ("epsilon", "epsilon_high", "beta", "entropy_coef")


class BNPOLoss(GRPOLoss):
    """GRPOLoss's terms, averaged over all labels of the batch, as TRL's loss_type 'bnpo' and the
    token-level loss of DAPO (Yu et al. 2025, arXiv 2503.14476)."""


class DRGRPOLoss(GRPOLoss):
    """Dr. GRPO (Liu et al. 2025, arXiv 2503.20783): GRPOLoss's terms, their sum divided by the
    number of sequences times max_completion_length, in tokens, so that long replies count as much
    a token as short ones. InvalidError: max_completion_length below 1, and as GRPOLoss."""

    arguments = ("epsilon", "beta", "max_completion_length", "epsilon_high", "entropy_coef")


class OPSDLoss(EngineLoss):
    """On-policy self-distillation (Zhao et al. 2026, arXiv 2601.18734), of the tokens that the
    policy sampled: exp(r) - r - 1, the mean over all labels of the batch, r = teacher - lp within
    +-10. It is the k3 estimate of KL(policy || teacher). The teacher is the same model, or another,
    whose prompt holds more. reverse False: r is lp - teacher.

    A call's arguments: teacher_logps, or in their place ref_logps or ref_outputs: of each label of
    a reply, since the teacher's prompt has another length. InvalidError: none of them, and as
    twinkle.loss.labels.
    """
