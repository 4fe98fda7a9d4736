"""The base class of rewards."""


class Reward:
    """__call__(trajectories): a list of Trajectories, whose last message is the reply and whose
    user_data holds what it is compared with (user_data_get). Returns a list of as many floats."""

    def __call__(self, trajectories, **kwargs):
        """A list of floats, one for each trajectory, in order."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__")
