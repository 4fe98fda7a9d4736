"""GRPOAdvantage and RLOOAdvantage: a reply against the other replies to its prompt.

[P, G] below is P prompts of G replies each. All is computed in float64: the float32 mean of equal
rewards is not always that reward, and what would be left is divided by next to nothing.
"""

import numbers
from collections import defaultdict

from twinkle import checks
from twinkle.advantage.base import Advantage
from twinkle.errors import refuse_unknown, require
from twinkle.logger import get_logger

_EPSILON = 1e-8  # added to the deviation that divides
_SCALES = ("group", "batch", "none")


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
        groups, restore = _groups(rewards, num_generations, scale, prompts)
        if groups.shape[1] > 1:
            return restore(_divided(_less_mean(groups, 1), groups, scale))
        if scale == "group":
            return restore(groups)
        return restore(_divided(_less_mean(groups, 0), groups, scale))


class RLOOAdvantage(Advantage):
    """The reward less the mean of the other rewards of its prompt (Ahmadian et al. 2024, eq. 7),
    divided as in GRPOAdvantage: that of the paper is with scale='none'."""

    def __call__(self, rewards, num_generations=1, scale="group", *, prompts=None, **kwargs):
        """float32 tensor [N], on the rewards' device: r_i - (sum of the prompt's - r_i) / (G - 1).

        Arguments: as of GRPOAdvantage. InvalidError: as there, and a num_generations of 1, with
        which there are no others.
        """
        refuse_unknown("advantage: RLOOAdvantage", kwargs)
        checks.integer("advantage: num_generations of RLOOAdvantage", num_generations, least=2)
        groups, restore = _groups(rewards, num_generations, scale, prompts)
        count = groups.shape[1]
        # r - (sum - r) / (G - 1) is G / (G - 1) times r - sum / G
        return restore(_divided(_less_mean(groups, 1) * (count / (count - 1)), groups, scale))


def check_shape(what, tensor, shape, dims):
    """InvalidError: another number of dimensions than one of dims, which `shape` shows."""
    require(
        tensor.dim() in dims, f"{what} have the shape {tuple(tensor.shape)}, it must be {shape}"
    )


def as_tensor(what, value, shape):
    """A tensor of numbers, detached. InvalidError: another thing."""
    import torch

    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError):  # ragged, no numbers, too large
        checks.refuse(what, value, f"numbers {shape}")


def as_finite(what, value, shape, dims=None):
    """A float64 tensor of numbers, detached. InvalidError: another thing, one not finite, another
    number of dimensions than one of dims."""
    out = as_tensor(what, value, shape).double()
    bad = (~out.isfinite()).nonzero()
    if len(bad):
        place = tuple(bad[0].tolist())
        checks.refuse(f"{what}[{', '.join(map(str, place))}]", out[place].item(), "a finite number")
    if dims:
        check_shape(what, out, shape, dims)
    return out


def _groups(rewards, num_generations, scale, prompts):
    """Rewards [P, G] in float64; and what brings such a tensor back to float32 [N] in the order of
    the rewards."""
    import torch

    count = checks.integer("advantage: num_generations", num_generations, least=1)
    checks.one_of("advantage: scale", scale, _SCALES)
    rewards = as_finite("advantage: rewards", rewards, "[N] or [N, K]", (1, 2))
    rewards = rewards.sum(-1) if rewards.dim() == 2 else rewards
    require(
        len(rewards) % count == 0,
        f"advantage: {len(rewards)} rewards are no multiple of num_generations, {count}: every "
        "prompt needs that many",
    )
    order = torch.tensor(
        range(len(rewards)) if prompts is None else _order(prompts, len(rewards), count),
        dtype=torch.long,
        device=rewards.device,
    )

    def restore(groups):
        return torch.empty_like(rewards).index_copy_(0, order, groups.flatten()).float()

    groups = rewards[order].reshape(-1, count)
    if count > 1 and len(groups) and bool((groups == groups[:, :1]).all()):
        get_logger().warning_once(
            "advantage: the rewards of each prompt are equal, so all advantages are 0 and this "
            "batch teaches nothing: grade the reward, or use easier prompts (docs/grpo.md); "
            "further ones are not reported",
            hash_id="advantage: equal rewards",
        )
    return groups, restore


def _order(prompts, length, count):
    """Indices of rewards such that those of one prompt follow each other."""
    prompts = prompts.tolist() if hasattr(prompts, "tolist") else prompts
    if not isinstance(prompts, (list, tuple)):
        checks.refuse("advantage: prompts", prompts, "a list of keys, one for each reward")
    require(
        len(prompts) == length,
        f"advantage: there are {len(prompts)} prompts for {length} rewards, there must be a key "
        "for each",
    )
    members = defaultdict(list)
    for i, key in enumerate(prompts):
        if not _is_key(key):
            checks.refuse(f"advantage: prompts[{i}]", key, "a number, a text or a tuple of these")
        members[key].append(i)
    for key, of_key in members.items():
        require(
            len(of_key) == count,
            f"advantage: prompt {key!r} has {len(of_key)} rewards, it must have num_generations, "
            f"{count}",
        )
    return [i for of_key in members.values() for i in of_key]


def _is_key(value):
    if isinstance(value, tuple):
        return all(map(_is_key, value))
    return isinstance(value, (str, numbers.Number))


def _less_mean(groups, dim):
    # Differences to the first one come first: of equal rewards they, and their mean, are exact 0.
    apart = groups - groups.narrow(dim, 0, 1) if groups.numel() else groups
    return apart - apart.mean(dim, keepdim=True)


def _divided(advantages, groups, scale):
    if scale == "none" or not len(groups):
        return advantages
    if scale == "batch":
        deviation = groups.std() if groups.numel() > 1 else groups.new_zeros(())
    else:
        deviation = groups.std(1, keepdim=True)
    return advantages / (deviation + _EPSILON)
