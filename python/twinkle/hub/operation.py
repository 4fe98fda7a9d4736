"""HubOperation: what Python does with the hubs of Hugging Face (hf://) and ModelScope (ms://).

An id without a prefix is looked for on Hugging Face, then on ModelScope; uploads and log-ins of
one are ModelScope's (docs/decisions/0013). The hubs' packages are imported when needed."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from twinkle import checks
from twinkle.errors import NotFoundError, refuse_unknown, require
from twinkle.hub.clients import fetched, hub_of, snapshot, source_of, told
from twinkle.hub.models import get


class HubOperation:
    """Every method takes ids with their prefix. NotAvailableError: the hub's package is missing;
    NotFoundError: the hub refuses, has no such thing, or cannot be reached."""

    _pool = ThreadPoolExecutor(8, thread_name_prefix="hub")  # uploads at a time
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
        return source_of(resource_name)[0]

    @staticmethod
    def remove_source_type(resource_name):
        """The id without hf:// or ms://; None and '' are returned as they are."""
        return resource_name and (resource_name.partition("://")[2] or resource_name)

    @classmethod
    def try_login(cls, token=None):
        """Logs in with a token, hf://TOKEN or [ms://]TOKEN; ModelScope's may also be in
        MODELSCOPE_API_TOKEN or MODELSCOPE_TOKEN. False: there is no token."""
        checks.text("hub: token", token, none=True, empty=True)
        source, token = source_of(token or "")
        if source == "ms":
            token = token or next(filter(None, map(os.environ.get, _TOKENS)), None)
        if not token:
            return False
        told(f"log in to {source}://", lambda: hub_of(source, "a log-in").login(token))
        return True

    @classmethod
    def create_model_repo(cls, repo_id, token=None, private=True):
        """Makes a repository for a model unless it is there. Returns its id with the prefix."""
        source, name = source_of(checks.text("hub: repo_id", repo_id))
        private = checks.flag("hub: private", private)
        hub = hub_of(source, repo_id)
        told(f"make the repository {repo_id!r}", lambda: hub.created(name, token, private))
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
        fetch = lambda hub, name: hub.dataset(name, subset, split, options)  # noqa: E731
        return fetched(dataset_id, fetch, options.get("token"), dataset=True)

    @classmethod
    def download_model(cls, model_id_or_path, revision=None, ignore_patterns=(), **options):
        """The local directory of a model, as twinkle.hub.get gives it.

        options: ignore_model: without its weights; token. A revision and ignore_patterns are for
        what is downloaded, not for directories.
        """
        without = checks.flag("hub: ignore_model", options.pop("ignore_model", False))
        refuse_unknown("hub: download_model", options, ["token"])
        options |= {"revision": revision, "ignored": ignore_patterns}
        return get(model_id_or_path, weights=not without, **options)

    @classmethod
    def download_file(cls, repo_id, repo_type="model", allow_patterns=None, token=None):
        """A local directory with the files of a repository whose names match, or with all."""
        checks.one_of("hub: repo_type", repo_type, ("model", "dataset"))
        return snapshot(repo_id, repo_type=repo_type, allow_patterns=allow_patterns, token=token)


_PUSH = ("path_in_repo", "commit_message", "commit_description", "revision", "ignore_patterns")
_TOKENS = ("MODELSCOPE_API_TOKEN", "MODELSCOPE_TOKEN")


def _upload(repo_id, folder_path, token=None, private=True, **options):
    """A function that uploads; the arguments are right, and the hub's package is there."""
    source, name = source_of(checks.text("hub: repo_id", repo_id))
    folder = checks.path("hub: folder_path", folder_path)
    private = checks.flag("hub: private", private)
    refuse_unknown("hub: push_to_hub", options, _PUSH)
    if not Path(folder).is_dir():
        raise NotFoundError(f"hub: folder_path {folder} does not exist")
    options = {key: value for key, value in options.items() if value is not None}
    hub = hub_of(source, repo_id)

    def push():
        api = hub.created(name, token, private)
        return str(api.upload_folder(repo_id=name, folder_path=folder, **options))

    return lambda: told(f"upload to {repo_id!r}", push)
