"""Losses of reinforcement learning: a policy's tokens, weighed by advantages.

Notation: lp is log p of a label, r = exp(lp - old) the ratio to the policy that sampled it, with
lp - old within +-20, A its advantage. The engine computes them, in float64.
"""

from twinkle import checks
from twinkle.errors import InvalidError
from twinkle.loss.engine import EngineLoss
from twinkle.loss.labels import check_ignore_index, reference, scored, spread


class GRPOLoss(EngineLoss):
    """Group relative policy optimization (Shao et al. 2024, arXiv 2402.03300, eq. 3):
    -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) + beta KL - entropy_coef H, the mean over
    each sequence's labels, then over the sequences. KL = exp(ref - lp) - (ref - lp) - 1, H is the
    entropy in nats.

    epsilon_high: epsilon where it is None. InvalidError: a negative coefficient.
    """

    engine_name = "GRPOLoss"
    row_arguments = ("old_logps", "advantages", "ref_logps", "ref_outputs")
    option_names = ("epsilon", "epsilon_high", "beta", "entropy_coef")

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
        return self._compute(
            inputs,
            outputs,
            old_logps=old_logps,
            advantages=advantages,
            ref_logps=ref_logps,
            ref_outputs=ref_outputs,
        )

    def engine_inputs(
        self, inputs, *, old_logps=None, advantages=None, ref_logps=None, ref_outputs=None
    ):
        name = f"loss: {type(self).__name__}"
        if advantages is None:
            raise InvalidError(
                f"{name} needs advantages: pass advantages=[...], one for each sequence; "
                "to score without learning call forward_only"
            )
        given = [("advantages", "advantages", advantages)]
        if old_logps is not None:
            given.append(("old_logps", "old_logps", old_logps))
        if self.beta > 0:
            given.append(("ref_logps", *reference(name, ref_logps, ref_outputs)))
        mask = scored(inputs, name)
        return {extra: spread(what, values, inputs, mask) for extra, what, values in given}


class PPOLoss(GRPOLoss):
    """Proximal policy optimization's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347,
    eq. 7): GRPOLoss's terms, averaged over all labels of the batch ('token-mean'), or over each
    sequence's and then over sequences ('seq-mean-token-mean'). InvalidError: another
    loss_agg_mode, and as GRPOLoss."""

    engine_name = "PPOLoss"
    option_names = (*GRPOLoss.option_names, "loss_agg_mode")

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


class GSPOLoss(GRPOLoss):
    """Group sequence policy optimization (Zheng et al. 2025, arXiv 2507.18071):
    GRPOLoss with one ratio for a sequence, the exponential of its mean lp - old."""

    engine_name = "GSPOLoss"


class SAPOLoss(GRPOLoss):
    """Soft adaptive policy optimization (arXiv 2511.20347): -sigmoid(tau (r - 1)) 4 / tau A in
    place of the clip, tau being tau_pos where A > 0, and tau_neg elsewhere; averaged as GRPOLoss.

    epsilon: is in the signature of ModelScope's Twinkle; nothing is clipped, so it has no effect.
    InvalidError: a tau that is not above 0, and as GRPOLoss.
    """

    engine_name = "SAPOLoss"
    option_names = (*GRPOLoss.option_names, "tau_pos", "tau_neg")

    def __init__(
        self, epsilon=0.2, beta=0.0, tau_pos=1.0, tau_neg=1.0, entropy_coef=0.0, ignore_index=-100
    ):
        super().__init__(epsilon, None, beta, entropy_coef, ignore_index)
        self.tau_pos = checks.number("loss: tau_pos", tau_pos, above=0)
        self.tau_neg = checks.number("loss: tau_neg", tau_neg, above=0)


class CISPOLoss(GRPOLoss):
    """Clipped importance sampling policy optimization (MiniMax 2025, arXiv 2506.13585):
    -min(r, 1 + epsilon_high) A lp, the first factor taken as a constant, so that every label
    learns; averaged over all labels of the batch. As in the paper's runs, r has no lower limit."""

    engine_name = "CISPOLoss"
    row_arguments = GRPOLoss.row_arguments

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
        return self._compute(
            inputs,
            outputs,
            old_logps=old_logps,
            advantages=advantages,
            ref_logps=ref_logps,
            ref_outputs=ref_outputs,
            num_items_in_batch=num_items_in_batch,
        )

    def engine_options(self, num_items_in_batch=None, **kwargs):
        """As the engine's loss has them. InvalidError: num_items_in_batch below 1."""
        divisor = checks.integer("loss: num_items_in_batch", num_items_in_batch, least=1, none=True)
        options = super().engine_options(**kwargs)
        return options if divisor is None else {**options, "num_items_in_batch": divisor}

    def engine_inputs(self, inputs, *, num_items_in_batch=None, **kwargs):
        del num_items_in_batch
        return super().engine_inputs(inputs, **kwargs)


class BNPOLoss(GRPOLoss):
    """GRPOLoss's terms, averaged over all labels of the batch, as TRL's loss_type 'bnpo' and the
    token-level loss of DAPO (Yu et al. 2025, arXiv 2503.14476)."""

    engine_name = "BNPOLoss"


class DRGRPOLoss(GRPOLoss):
    """Dr. GRPO (Liu et al. 2025, arXiv 2503.20783): GRPOLoss's terms, their sum divided by the
    number of sequences times max_completion_length, in tokens, so that long replies count as much
    a token as short ones. InvalidError: max_completion_length below 1, and as GRPOLoss."""

    engine_name = "DRGRPOLoss"
    option_names = (*GRPOLoss.option_names, "max_completion_length")

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
