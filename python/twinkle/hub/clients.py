"""The hubs' own clients: Hugging Face's (hf://) and ModelScope's (ms://), imported when needed.

An id without a prefix is looked for on Hugging Face, then on ModelScope; uploads and log-ins of
one are ModelScope's (docs/decisions/0013)."""

import errno
import importlib

from twinkle import checks
from twinkle.errors import NotAvailableError, NotFoundError, TwinkleError, require
from twinkle.logger import get_logger


def snapshot(repo_id, **options):
    """The local directory of a repository. options, of which None is none: ignore_patterns,
    allow_patterns, repo_type, revision, token. InvalidError: a repo_id that is no text; and the
    errors of fetched."""
    checks.text("hub: repo_id", repo_id)
    options = {key: value for key, value in options.items() if value is not None}

    def fetch(hub, name):
        return importlib.import_module(hub.package).snapshot_download(name, **options)

    return str(fetched(repo_id, fetch, options.get("token")))


def split(name):
    """('hf' | 'ms' | '', id without the prefix). InvalidError: another prefix."""
    source, mark, rest = name.partition("://")
    must = f"hub: {name!r} begins with {source + '://'!r}, it must be hf:// or ms://"
    require(not mark or source in ("hf", "ms"), must)
    return (source, rest) if mark else ("", name)


def source_of(name):
    """split, where no prefix is that of uploads. InvalidError: hf:// while TWINKLE_FORBID_HF is
    set."""
    source, rest = split(name)
    require(
        source != "hf" or not checks.is_on("TWINKLE_FORBID_HF"),
        f"hub: {name!r} is not fetched, because TWINKLE_FORBID_HF is set: use ms://{rest}, or "
        "unset it",
    )
    return source or "ms", rest


def fetched(wanted, fetch, token=None, dataset=False):
    """The result of `fetch` for a name: from the hub that the prefix names; without one of
    Hugging Face, then of ModelScope, each if its package is installed. NotFoundError: no hub gives
    it, each with its reason; NotAvailableError: there is no package of any; InvalidError: a token
    without a prefix."""
    source, name = source_of(wanted)

    def fetched_from(source):
        hub = hub_of(source, wanted, dataset)
        return told(f"fetch '{source}://{name}'", lambda: fetch(hub, name))

    if "://" in wanted:
        return fetched_from(source)
    require(
        not token,
        f"hub: a token is given for {wanted!r}, but not for which hub: write hf://{name} or "
        f"ms://{name}, so that no other hub sees it",
    )
    errors = {}  # by hub
    for source in ("ms",) if checks.is_on("TWINKLE_FORBID_HF") else _HUBS:
        try:
            found = fetched_from(source)
        except TwinkleError as error:
            errors[source] = error
        else:
            if errors:  # an answer of the second hub may be somebody else's
                get_logger().info(f"hub: {wanted!r} is {source}://{name}: {errors['hf']}")
            return found
    raise _of_no_hub(wanted, name, errors, dataset)


def _of_no_hub(wanted, name, errors, dataset):
    """The error of an id without a prefix that no hub gives."""
    asked = [each for each in errors.values() if not isinstance(each, NotAvailableError)]
    if not asked:
        return _needs(wanted, [_HUBS[source] for source in errors], dataset)
    reasons = "; ".join(str(error).removeprefix("hub: ") for error in errors.values())
    why = f"neither a path here nor on a hub: {reasons}. Write hf://{name} or ms://{name} to look "
    why += "on one hub only"
    if all(map(_is_offline, asked)):
        why = "not a path here, and there is no network to look for it on a hub"
    return NotFoundError(f"hub: {wanted!r} is {why}")


def told(what, call):
    """call()'s result. NotFoundError: it raises, with `what` it was to do and the cause."""
    try:
        return call()
    except Exception as error:  # whatever a hub's client raises, its cause is one line
        own = _own(error)
        lines = str(own).strip().splitlines() or [type(own).__name__]
        reason = "no network, the hub cannot be reached" if _is_offline(error) else lines[0]
        raise NotFoundError(f"hub: cannot {what}: {reason}") from error


# By name: every hub's client has classes of its own.
_OWN = {"SSLError", "ProxyError", "OfflineModeIsEnabled", "ConnectionResetError"}
_OFFLINE = {"gaierror", "ConnectionRefusedError", "ConnectTimeout", "ConnectTimeoutError"}
_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}


def _chain(error):
    """An error, and those that led to it."""
    seen = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return seen


def _is_a(error, names):
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _own(error):
    """The first of the errors that led to this one if that tells more: TLS, a proxy, a reset, or
    offline mode, to which clients' other errors say no more than that a connection failed."""
    return next((each for each in reversed(_chain(error)) if _is_a(each, _OWN)), error)


def _is_offline(error):
    """True if the hub was not reached at all: no name, no way, refused, or no answer in time."""
    return not _is_a(_own(error), _OWN) and any(
        _is_a(each, _OFFLINE) or getattr(each, "errno", None) in _UNREACHABLE
        for each in _chain(error)
    )


def hub_of(source, wanted, dataset=False):
    """The hub's class below. NotAvailableError: its package cannot be imported."""
    hub = _HUBS[source]
    try:
        importlib.import_module(hub.datasets_module if dataset else hub.package)
    except ImportError:
        raise _needs(wanted, [hub], dataset) from None
    return hub


def _needs(wanted, hubs, dataset):
    """The error of missing packages: what to install, and what does without."""
    packages = [hub.datasets if dataset else hub.package for hub in hubs]
    instead = "a local directory needs no package"
    if dataset:
        instead = f"or name a local file, as TWINKLE_DATASET_ID_ALIASES='{wanted}=FILE' does "
        instead += "without a change to the script"
    return NotAvailableError(
        f"hub: {wanted!r} needs the package {' or '.join(packages)}, which is not installed: "
        f"pip install {packages[0]}; {instead}"
    )


class _HuggingFace:
    package, datasets, datasets_module = "huggingface_hub", "datasets", "datasets"

    @staticmethod
    def login(token):
        importlib.import_module("huggingface_hub").login(token, skip_if_logged_in=False)

    @staticmethod
    def created(name, token, private):
        """The hub's API, after it has made a repository unless it is there."""
        api = importlib.import_module("huggingface_hub").HfApi(token=token)
        api.create_repo(name, private=private, exist_ok=True)
        return api

    @staticmethod
    def dataset(name, subset, split, options):
        datasets = importlib.import_module("datasets")
        return datasets.load_dataset(name, subset, split=split, **options)


class _ModelScope:
    package, datasets, datasets_module = "modelscope", "modelscope", "modelscope.msdatasets"

    @staticmethod
    def login(token):
        importlib.import_module("modelscope.hub.api").HubApi().login(token)

    @staticmethod
    def created(name, token, private):
        """As of _HuggingFace."""
        if token:
            _ModelScope.login(token)
        api = importlib.import_module("modelscope.hub.api").HubApi()
        api.create_repo(name, visibility="private" if private else "public", exist_ok=True)
        return api

    @staticmethod
    def dataset(name, subset, split, options):
        words = {"revision": "version", "streaming": "use_streaming"}
        named = {words.get(key, key): value for key, value in options.items()}
        load = importlib.import_module("modelscope.msdatasets").MsDataset.load
        rows = load(name, subset_name=subset, split=split, **named)
        return rows.to_hf_dataset() if hasattr(rows, "to_hf_dataset") else rows


_HUBS = {"hf": _HuggingFace, "ms": _ModelScope}  # in the order in which ids without a prefix ask
