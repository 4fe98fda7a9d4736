"""GAEAdvantage: the advantage of every token, by a critic's values."""

from twinkle import checks
from twinkle.advantage.base import Advantage
from twinkle.advantage.group import as_finite, as_tensor, check_shape
from twinkle.errors import refuse_unknown, require


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
        rewards = as_finite("advantage: rewards", rewards, "[B]", (1,)).tolist()
        lengths = checks.ids("advantage: lengths", lengths)
        _same_number("lengths", lengths, rewards)
        require(
            (old_logps is None) == (ref_logps is None),
            "advantage: old_logps and ref_logps go together, but only one of them is given",
        )
        require(
            old_logps is not None or kl_coef == 0,
            f"advantage: kl_coef is {kl_coef}, for which old_logps and ref_logps must be given",
        )
        for i, length in enumerate(lengths):
            checks.integer(f"advantage: lengths[{i}]", length, least=1)
        out = [[0.0] * length for length in lengths]
        if old_logps is not None:
            pairs = zip(
                _ragged("old_logps", old_logps, lengths),
                _ragged("ref_logps", ref_logps, lengths),
                strict=True,
            )
            out = [(-kl_coef * (old - ref)).tolist() for old, ref in pairs]
        for tokens, reward in zip(out, rewards, strict=True):
            tokens[-1] += reward
        return out

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
        rewards, values, masks = _inputs(rewards, values, masks)
        advantages = torch.zeros_like(rewards)
        following = rewards.new_zeros(2, len(rewards))  # advantage and value of the next position
        for t in reversed(range(rewards.shape[1])):
            delta = rewards[:, t] + self.gamma * following[1] - values[:, t]
            here = delta + self.gamma * self.gae_lambda * following[0]
            following = torch.where(masks[:, t], torch.stack([here, values[:, t]]), following)
            advantages[:, t] = torch.where(masks[:, t], here, 0.0)
        returns = advantages + values
        if normalize and masks.any():
            counted = advantages[masks]
            whitened = (counted - counted.mean()) / (counted.std(correction=0) + 1e-8)
            advantages = advantages.masked_scatter(masks, whitened)
        return advantages.float(), returns.float()


def _same_number(name, given, rewards):
    require(
        len(given) == len(rewards),
        f"advantage: there are {len(given)} {name} for {len(rewards)} rewards, there must be one "
        "for each",
    )


def _ragged(name, rows, lengths):
    """A float64 tensor [length] for each of `lengths`."""
    sized = hasattr(rows, "__len__") and getattr(rows, "ndim", 1) > 0
    if not sized or isinstance(rows, (str, dict)):
        checks.refuse(f"advantage: {name}", rows, "a list of log-probabilities for each reply")
    _same_number(name, rows, lengths)
    out = [as_finite(f"advantage: {name}[{i}]", row, "[T]") for i, row in enumerate(rows)]
    for i, (row, length) in enumerate(zip(out, lengths, strict=True)):
        require(
            tuple(row.shape) == (length,),
            f"advantage: {name}[{i}] has the shape {tuple(row.shape)}, the reply has {length} "
            "tokens",
        )
    return out


def _inputs(rewards, values, masks):
    """rewards, values (float64) and masks (bool), all [B, T]; 0 where masks are 0."""
    import torch

    def matrix(name, value):
        out = as_tensor(f"advantage: {name}", value, "[B, T] (pad replies, with masks)")
        out = out[None] if out.dim() == 1 else out
        check_shape(f"advantage: {name}", out, "[B, T]", (2,))
        return out

    rewards, values = matrix("rewards", rewards), matrix("values", values)
    masks = torch.ones_like(rewards) if masks is None else matrix("masks", masks)
    for name, other in (("values", values), ("masks", masks)):
        require(
            other.shape == rewards.shape,
            f"advantage: {name} have the shape {tuple(other.shape)}, rewards {tuple(rewards.shape)}"
            ", these must be the same",
        )
    masks = masks.to(rewards.device) != 0
    given = [("rewards", rewards), ("values", values.to(rewards.device))]
    counted = [as_finite(f"advantage: {n}", x.masked_fill(~masks, 0), "[B, T]") for n, x in given]
    return *counted, masks
