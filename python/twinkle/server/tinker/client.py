"""The tinker SDK's clients with the keys and paths of ModelScope's Twinkle."""

import functools
import os

from twinkle.errors import NotAvailableError, refuse_unknown

_PREFIX = "tml-"


def init_tinker_client(**kwargs):
    """Lifts two checks of the tinker SDK in this process: keys need not begin with 'tml-', and
    paths may begin with 'twinkle://', which is read as 'tinker://'. Where no key is given the
    variable TINKER_API_KEY or else TWINKLE_SERVER_TOKEN is used, and where no base_url is given
    TINKER_BASE_URL or else TWINKLE_SERVER_URL. A second call changes nothing. InvalidError: any
    argument. NotAvailableError: the package tinker is not installed."""
    refuse_unknown("init_tinker_client", kwargs)
    try:
        from tinker.lib import _auth_token_provider as auth
        from tinker.lib.internal_client_holder import InternalClientHolder
        from tinker.types.checkpoint import ParsedCheckpointTinkerPath
    except ImportError:
        raise NotAvailableError(
            "init_tinker_client: needs the package tinker, 0.25 or newer: pip install tinker"
        ) from None
    for name, other in (("API_KEY", "TOKEN"), ("BASE_URL", "URL")):
        if given := os.environ.get(f"TWINKLE_SERVER_{other}"):
            os.environ.setdefault(f"TINKER_{name}", given)
    _wrap(auth.ApiKeyAuthProvider, "__init__", _any_key)
    _wrap(InternalClientHolder, "_create_sampling_session", _any_path)
    parse = ParsedCheckpointTinkerPath.from_tinker_path.__func__
    if not hasattr(parse, "__wrapped__"):
        ParsedCheckpointTinkerPath.from_tinker_path = classmethod(_any_path(parse))


def init_tinker_compat_client(base_url=None, api_key=None):
    """tinker.ServiceClient(base_url=, api_key=), after init_tinker_client()."""
    init_tinker_client()
    import tinker

    return tinker.ServiceClient(base_url=base_url, api_key=api_key)


def _wrap(cls, name, how):
    """Replaces a method by how(method), once."""
    method = getattr(cls, name)
    if not hasattr(method, "__wrapped__"):
        setattr(cls, name, how(method))


def _any_key(init):
    """ApiKeyAuthProvider's constructor, which checks the key with the prefix and sends it without
    one that it did not have."""

    @functools.wraps(init)
    def with_any_key(self, api_key=None):
        key = api_key or os.environ.get("TINKER_API_KEY")
        checked = key if not key or key.startswith((_PREFIX, "eyJ")) else _PREFIX + key
        init(self, checked)
        if key:
            self._token = key

    return with_any_key


def _any_path(function):
    """A method of a path, which it reads as tinker:// where it is twinkle://."""

    @functools.wraps(function)
    def with_any_path(self, path=None, *args, **kwargs):
        kwargs = {name: _as_tinker(value) for name, value in kwargs.items()}
        return function(self, *(() if path is None else (_as_tinker(path),)), *args, **kwargs)

    return with_any_path


def _as_tinker(path):
    is_other = isinstance(path, str) and path.startswith("twinkle://")
    return path.replace("twinkle", "tinker", 1) if is_other else path
