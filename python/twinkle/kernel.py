"""kernelize(): the engine has its own kernels; the call is accepted and changes nothing."""

from twinkle.errors import require


def kernelize(model, mapping=None):
    """Returns `model`. mapping: None, or a dict, which has no effect here."""
    require(
        mapping is None or isinstance(mapping, dict),
        f"kernel: mapping is a {type(mapping).__name__}, it must be a dict or None",
    )
    return model
