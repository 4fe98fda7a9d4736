"""InputProcessor."""

from twinkle import checks
from twinkle.errors import refuse_unknown, require
from twinkle.remote.decorate import remote_class
from twinkle.remote.how import of_one


@remote_class(execute="all", listed=False)
class InputProcessor:
    """Subclass and override __call__ to change features before a forward.

    Tokens are packed, never padded: padding_side and padding_free are accepted and change nothing
    in the arithmetic. InvalidError: an unknown argument, a padding_side other than 'left' and
    'right', a framework other than 'transformers' and 'megatron', a padding_free that is neither
    True nor False.
    """

    def __init__(
        self,
        device_mesh=None,
        padding_free=False,
        framework="transformers",
        padding_side="right",
        **kwargs,
    ):
        refuse_unknown(
            "processor: InputProcessor",
            kwargs,
            ("device_mesh", "padding_free", "framework", "padding_side"),
        )
        require(
            padding_side in ("left", "right"),
            f"processor: padding_side is {padding_side!r}, it must be 'left' or 'right'",
        )
        require(
            framework in ("transformers", "megatron"),
            f"processor: framework is {framework!r}, it must be 'transformers' or 'megatron'",
        )
        self.device_mesh = device_mesh
        self.padding_free = checks.flag("processor: padding_free", padding_free)
        self.framework = framework
        self.padding_side = padding_side

    @of_one
    def __call__(self, inputs):
        """A list of InputFeatures to a list of InputFeatures; here: the same."""
        return inputs
