"""GRPOAdvantage and RLOOAdvantage: a reply against the other replies to its prompt."""

from twinkle import checks
from twinkle.advantage.base import Advantage
from twinkle.core import core
from twinkle.errors import refuse_unknown
from twinkle.logger import get_logger


class GRPOAdvantage(Advantage):
    """The reward less the mean of its prompt's, divided by a deviation (Shao et al. 2024, 4.1.2).

    With one reply to a prompt there is no such mean: scale='group' gives the rewards as they are,
    'none' takes the batch's mean off, 'batch' divides by the batch's deviation, too.
    """

    def __call__(self, rewards, num_generations=1, scale="group", *, prompts=None, **kwargs):
        """float32 tensor [N], on the rewards' device.

        rewards: [N], or [N, K] of K rewards that are summed; a list or a tensor.
        num_generations: G, replies to each prompt. scale: 'group': divided by the sample standard
        deviation of the prompt's rewards + 1e-8, 'batch': by that of all rewards + 1e-8, 'none':
        by 1. Equal rewards give exact zeros; a batch of nothing else is warned of, once.
        prompts: None: G rewards that follow each other are of one prompt. Otherwise [N] keys
        (numbers, texts), the same for rewards of one prompt, in any order: of replies to
        `batch * G`, whose prompts come as A B A B, list(range(len(batch))) * G.
        InvalidError: rewards that are not finite numbers [N] or [N, K], a num_generations below 1
        or that N is no multiple of, another scale, prompts of which one has not G rewards, an
        unknown argument.
        """
        refuse_unknown("advantage: GRPOAdvantage", kwargs)
        count = checks.integer("advantage: num_generations", num_generations, least=1)
        return _of_groups(rewards, count, scale, prompts, others=False)


class RLOOAdvantage(Advantage):
    """The reward less the mean of the other rewards of its prompt (Ahmadian et al. 2024, eq. 7),
    divided as in GRPOAdvantage: that of the paper is with scale='none'."""

    def __call__(self, rewards, num_generations=1, scale="group", *, prompts=None, **kwargs):
        """float32 tensor [N], on the rewards' device: r_i - (sum of the prompt's - r_i) / (G - 1).

        Arguments: as of GRPOAdvantage. InvalidError: as there, and a num_generations of 1, with
        which there are no others.
        """
        refuse_unknown("advantage: RLOOAdvantage", kwargs)
        what = "advantage: num_generations of RLOOAdvantage"
        count = checks.integer(what, num_generations, least=2)
        return _of_groups(rewards, count, scale, prompts, others=True)


def _of_groups(rewards, count, scale, prompts, others):
    import torch

    checks.one_of("advantage: scale", scale, ("group", "batch", "none"))
    found = core().group_advantages(rewards, count, scale, prompts, others)
    if count > 1 and len(found) and not found.any():
        get_logger().warning_once(
            "advantage: the rewards of each prompt are equal, so all advantages are 0 and this "
            "batch teaches nothing: grade the reward, or use easier prompts (docs/grpo.md); "
            "further ones are not reported",
            hash_id="advantage: equal rewards",
        )
    return torch.as_tensor(found, device=getattr(rewards, "device", None))
