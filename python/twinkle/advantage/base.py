"""The base class of advantages."""


class Advantage:
    """__call__(rewards, num_generations=1, scale='group'): rewards [N], of which num_generations
    that follow each other belong to one prompt. Returns a float32 tensor [N]."""

    def __call__(self, rewards, num_generations=1, scale="group", **kwargs):
        """float32 tensor [N], an advantage for each of rewards [N]. scale: whose deviation divides
        what a reward differs by: that of the prompt's 'group', of the 'batch', or 'none'."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__")
