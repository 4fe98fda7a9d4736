"""TextReward: a reward of what a model wrote since the user's last message."""

from twinkle.core import core
from twinkle.errors import refuse_unknown
from twinkle.reward.base import Reward


class TextReward(Reward):
    """A reward of one trajectory at a time: a subclass defines score(turn)."""

    def __call__(self, trajectories, **kwargs):
        """A float from 0 to 1 for each trajectory, in order: score of it. 0 for an empty reply.

        The reply is the last message of role 'assistant' after the last of role 'user'; of a
        content in parts the text is read. InvalidError: no list of dicts; a trajectory without
        messages or without a reply, or without the ground truth that the class reads, each by
        number and key; an unknown argument.
        """
        name = type(self).__name__
        refuse_unknown(f"reward: {name}", kwargs)
        return [float(self.score(turn)) for turn in core().turns(trajectories, name)]

    def score(self, turn):
        """The reward of a turn, from 0 to 1. turn.reply, turn.thought: what the model wrote, and
        its reasoning_content, '' where it has none; turn.messages: those since the user's last;
        turn.truth(key='ground_truth'), turn.truths(key): what user_data has to compare with, a
        text or several, any of which is right; turn.user_data(key): all values of that name.
        turn.last_box(text), turn.between(text, tag): what the last \\boxed{} or <tag></tag> holds,
        or None."""
        raise NotImplementedError(f"{type(self).__name__} must define score")
