"""HubOperation: what Python does with the hubs of Hugging Face (hf://) and ModelScope (ms://).

An id without a prefix is looked for on Hugging Face, then on ModelScope; uploads and log-ins of
one are ModelScope's (docs/decisions/0013). The hubs' packages are imported when needed."""

import contextlib
import errno
import importlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from twinkle import checks
from twinkle.errors import InvalidError, NotAvailableError, NotFoundError, TwinkleError, require
from twinkle.logger import get_logger

_UPLOADS = 8  # at a time


class HubOperation:
    """Every method takes ids with their prefix. NotAvailableError: the hub's package is missing;
    NotFoundError: the hub refuses, has no such thing, or cannot be reached."""

    _pool = None
    _uploads = {}  # noqa: RUF012 (repository: future, for wait_for)

    @classmethod
    @contextlib.contextmanager
    def patch_hub(cls):
        """Accepted around code that loads from a hub: ids alone decide which hub that is."""
        yield

    @staticmethod
    def source_type(resource_name):
        """'hf' or 'ms': the hub of the prefix, without one that of uploads. InvalidError: another
        prefix; hf:// while TWINKLE_FORBID_HF is set."""
        return _split(resource_name)[0]

    @staticmethod
    def remove_source_type(resource_name):
        """The id without hf:// or ms://; None and '' are returned as they are."""
        return (
            resource_name.partition("://")[2] or resource_name if resource_name else resource_name
        )

    @classmethod
    def try_login(cls, token=None):
        """Logs in with a token, hf://TOKEN or [ms://]TOKEN; ModelScope's may also be in
        MODELSCOPE_API_TOKEN or MODELSCOPE_TOKEN. False: there is no token."""
        checks.text("hub: token", token, none=True, empty=True)
        source, token = _split(token or "")
        if source == "ms":
            token = token or next(filter(None, map(os.environ.get, _TOKENS)), None)
        if not token:
            return False
        _told(f"log in to {source}://", lambda: _hub(source, "a log-in").login(token))
        return True

    @classmethod
    def create_model_repo(cls, repo_id, token=None, private=True):
        """Makes a repository for a model unless it is there. Returns its id with the prefix."""
        source, name = _split(checks.text("hub: repo_id", repo_id))
        private = checks.flag("hub: private", private)
        hub = _hub(source, repo_id)
        _told(f"make the repository {repo_id!r}", lambda: hub.create(name, token, private))
        return f"{source}://{name}"

    @classmethod
    def push_to_hub(cls, repo_id, folder_path, **options):
        """Uploads a folder to a model's repository, which is made, private, if need be. Returns
        what the hub says of the commit, as text.

        options: token, private, path_in_repo, commit_message, commit_description, revision (the
        branch), ignore_patterns.
        """
        return _upload(repo_id, folder_path, **options)()

    @classmethod
    def async_push_to_hub(cls, repo_id, folder_path, **options):
        """push_to_hub in a thread; what is wrong here and now is raised at once. Returns a Future;
        wait_for collects it, too."""
        upload = _upload(repo_id, folder_path, **options)
        if cls._pool is None:
            HubOperation._pool = ThreadPoolExecutor(_UPLOADS, thread_name_prefix="hub")
        cls._uploads[repo_id] = cls._pool.submit(upload)
        return cls._uploads[repo_id]

    @classmethod
    def wait_for(cls, repo_ids=None):
        """{repo_id: what the hub said, or the error's text} of the uploads that
        async_push_to_hub began since they were last waited for; None: of all."""
        wanted = list(cls._uploads) if repo_ids is None else list(repo_ids)
        unknown = [repo_id for repo_id in wanted if repo_id not in cls._uploads]
        require(not unknown, f"hub: no upload to {', '.join(map(repr, unknown))} was begun")
        results = {}
        for repo_id in wanted:
            future = cls._uploads.pop(repo_id)
            results[repo_id] = str(future.exception() or future.result())
        return results

    @classmethod
    def load_dataset(cls, dataset_id, subset_name="default", split="train", **options):
        """A hub's data set, as its package gives it. options: streaming, revision, token, features,
        trust_remote_code."""
        checks.text("hub: dataset_id", dataset_id)
        subset = None if subset_name == "default" else subset_name
        options = {key: value for key, value in options.items() if value not in (None, False)}
        return _fetched(
            dataset_id,
            lambda hub, name: hub.dataset(name, subset, split, options),
            options.get("token"),
            dataset=True,
        )

    @classmethod
    def download_model(cls, model_id_or_path, revision=None, ignore_patterns=(), **options):
        """The local directory of a model, as twinkle.hub.get gives it.

        options: ignore_model: without its weights; token. A revision and ignore_patterns are for
        what is downloaded, not for directories.
        """
        from twinkle import hub

        ignore_model = checks.flag("hub: ignore_model", options.pop("ignore_model", False))
        token = options.pop("token", None)
        require(not options, f"hub: download_model takes no {', '.join(sorted(options))}")
        if revision is None and not ignore_patterns and token is None:
            return hub.get(model_id_or_path, weights=not ignore_model)
        path = hub.local(model_id_or_path)
        if path is not None:
            return path
        ignored = [*ignore_patterns, *(hub.WEIGHT_PATTERNS if ignore_model else ())]
        return cls._snapshot(
            model_id_or_path, ignored=ignored or None, revision=revision, token=token
        )

    @classmethod
    def download_file(cls, repo_id, repo_type="model", allow_patterns=None, token=None):
        """A local directory with the files of a repository whose names match, or with all."""
        require(
            repo_type in ("model", "dataset"),
            f"hub: repo_type is {repo_type!r}, it must be 'model' or 'dataset'",
        )
        return cls._snapshot(repo_id, kind=repo_type, allowed=allow_patterns, token=token)

    @classmethod
    def _snapshot(cls, repo_id, **options):
        checks.text("hub: repo_id", repo_id)
        options = {key: value for key, value in options.items() if value is not None}
        fetch = lambda hub, name: hub.snapshot(name, options)  # noqa: E731
        return str(_fetched(repo_id, fetch, options.get("token")))


_PUSH = ("path_in_repo", "commit_message", "commit_description", "revision", "ignore_patterns")
_TOKENS = ("MODELSCOPE_API_TOKEN", "MODELSCOPE_TOKEN")


def _upload(repo_id, folder_path, token=None, private=True, **options):
    """A function that uploads; the arguments are right, and the hub's package is there."""
    source, name = _split(checks.text("hub: repo_id", repo_id))
    folder = checks.path("hub: folder_path", folder_path)
    private = checks.flag("hub: private", private)
    unknown = sorted(set(options) - set(_PUSH))
    require(not unknown, f"hub: push_to_hub takes no {unknown}, it takes {', '.join(_PUSH)}")
    if not Path(folder).is_dir():
        raise NotFoundError(f"hub: folder_path {folder} does not exist")
    options = {key: value for key, value in options.items() if value is not None}
    hub = _hub(source, repo_id)

    def push():
        hub.create(name, token, private)
        return str(hub.upload(name, folder, token, options))

    return lambda: _told(f"upload to {repo_id!r}", push)


def _split(name):
    """('hf' | 'ms', id without the prefix)."""
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


def _fetched(wanted, fetch, token=None, dataset=False):
    """The result of `fetch` for a name: from the hub that the prefix names; without one of
    Hugging Face, then of ModelScope, each if its package is installed. NotFoundError: no hub gives
    it, each with its reason; NotAvailableError: there is no package of any; InvalidError: a token
    without a prefix."""
    source, name = _split(wanted)
    if "://" in wanted:
        hub = _hub(source, wanted, dataset)
        return _told(f"fetch '{source}://{name}'", lambda: fetch(hub, name))
    require(
        not token,
        f"hub: a token is given for {wanted!r}, but not for which hub: write hf://{name} or "
        f"ms://{name}, so that no other hub sees it",
    )
    reasons = []
    kinds = {} if _switched_on("TWINKLE_FORBID_HF") else {"hf": _HuggingFace}
    for source, kind in (kinds | {"ms": _ModelScope}).items():
        try:
            hub = _hub(source, wanted, dataset)
            found = _told(f"fetch '{source}://{name}'", lambda hub=hub: fetch(hub, name))
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
    told = "; ".join(str(error).removeprefix("hub: ") for _, error in reasons)
    raise NotFoundError(
        f"hub: {wanted!r} is neither a path here nor on a hub: {told}. Write hf://{name} or "
        f"ms://{name} to look on one hub only"
    )


def _switched_on(name):
    return os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")


def _told(what, call):
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


def _hub(source, wanted, dataset=False):
    """The hub's functions below, if its package can be imported."""
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
