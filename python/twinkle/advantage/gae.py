"""GAEAdvantage: the advantage of every token, by a critic's values."""

from twinkle import checks
from twinkle.advantage.base import Advantage
from twinkle.core import core
from twinkle.errors import refuse_unknown


class GAEAdvantage(Advantage):
    """Generalized advantage estimation (Schulman et al. 2016, eq. 16), of B replies of T tokens:
    A_t = d_t + gamma gae_lambda A_t+1, d_t = r_t + gamma V_t+1 - V_t, V = A = 0 after the last.

    normalize: advantages get mean 0 and deviation 1. InvalidError: gamma or gae_lambda that is no
    number from 0 to 1, normalize that is neither True nor False.
    """

    def __init__(self, gamma=1.0, gae_lambda=0.95, normalize=True):
        for name, value in (("gamma", gamma), ("gae_lambda", gae_lambda)):
            setattr(self, name, checks.share(f"advantage: {name}", value))
        self.normalize = checks.flag("advantage: normalize", normalize)

    @staticmethod
    def build_token_rewards(rewards, lengths, *, old_logps=None, ref_logps=None, kl_coef=0.0):
        """A list of B lists: the rewards of a reply's tokens, of which the last one gets the
        reply's own, and each -kl_coef (old_logp - ref_logp).

        rewards: [B] numbers. lengths: [B] tokens of each reply, at least 1. old_logps, ref_logps:
        B lists of as many log-probabilities in nats, of the policy that sampled and of the
        reference; both or neither. InvalidError: other numbers of things, or one that is not
        finite; a kl_coef below 0, or above 0 without log-probabilities.
        """
        kl_coef = checks.number("advantage: kl_coef", kl_coef, least=0)
        lengths = checks.ids("advantage: lengths", lengths)
        return core().token_rewards(rewards, lengths, old_logps, ref_logps, kl_coef)

    def __call__(self, rewards, values, *, masks=None, normalize=None, **kwargs):
        """(advantages, returns), float32 tensors [B, T] on the rewards' device.

        rewards, values: [B, T], or [T] for B = 1; values are the critic's, before each token.
        masks: [B, T], nonzero where a position counts; None: everywhere. The others, such as
        padding or a tool's tokens, are stepped over: the next position is the next that counts.
        They get 0 in both results, and their entries are ignored.
        returns = advantages + values, of advantages before they are normalized. normalize: over all
        positions that count, with the population's deviation + 1e-8; None: as constructed.
        InvalidError: other shapes, a number at a position that counts that is not finite, a
        normalize that is neither, an unknown argument.
        """
        import torch

        refuse_unknown("advantage: GAEAdvantage", kwargs)
        normalize = self.normalize if normalize is None else normalize
        normalize = checks.flag("advantage: normalize", normalize)
        decay = self.gamma, self.gae_lambda
        found = core().token_advantages(rewards, values, masks, decay, normalize)
        return tuple(torch.as_tensor(x, device=getattr(rewards, "device", None)) for x in found)
