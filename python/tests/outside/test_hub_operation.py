"""HubOperation: which hub an id goes to, and what its client is asked for; the clients are
stand-ins that note their calls. test_hub_upload.py sends to a hub over loopback."""

import sys
import types

import pytest

from twinkle.errors import InvalidError, NotAvailableError, NotFoundError
from twinkle.hub import HubOperation


@pytest.fixture
def asked(monkeypatch):
    """The calls that reached modelscope's or huggingface_hub's functions: (name, args, kwargs)."""
    calls = []

    def noting(name, result=None):
        def function(*args, **kwargs):
            calls.append((name, args, kwargs))
            if "bad" in args or kwargs.get("repo_id") == "bad/name":
                raise RuntimeError("403 for bad\nand more")
            return result

        return function

    def api(prefix):
        class Api:
            def __init__(self, token=None):
                self.token = token

            login = staticmethod(noting(prefix + " login"))
            create_repo = staticmethod(noting(prefix + " create"))
            upload_folder = staticmethod(noting(prefix + " upload", "commit 1"))

        return Api

    def module(name, **fields):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**fields))

    module("modelscope", snapshot_download=noting("ms snapshot", "/ms"))
    module("modelscope.hub", api=None)
    module("modelscope.hub.api", HubApi=api("ms"))
    module("modelscope.msdatasets", MsDataset=types.SimpleNamespace(load=noting("ms dataset", [1])))
    module(
        "huggingface_hub",
        snapshot_download=noting("hf snapshot", "/hf"),
        HfApi=api("hf"),
        login=noting("hf login"),
    )
    module("datasets", load_dataset=noting("hf dataset", [2]))
    for name in ("MODELSCOPE_API_TOKEN", "MODELSCOPE_TOKEN", "TWINKLE_FORBID_HF"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_a_prefix_names_the_hub(monkeypatch):
    for name, source, rest in (
        ("hf://a/b", "hf", "a/b"), ("ms://a/b", "ms", "a/b"), ("a/b", "ms", "a/b"),
    ):  # fmt: skip
        assert HubOperation.source_type(name) == source
        assert HubOperation.remove_source_type(name) == rest
    assert (
        HubOperation.remove_source_type("") == "" and HubOperation.remove_source_type(None) is None
    )
    with pytest.raises(InvalidError, match="'s3://a' begins with 's3://', it must be hf:// or ms"):
        HubOperation.source_type("s3://a")
    monkeypatch.setenv("TWINKLE_FORBID_HF", "1")
    with pytest.raises(InvalidError, match="'hf://a' is not fetched, because TWINKLE_FORBID_HF"):
        HubOperation.source_type("hf://a")
    with HubOperation.patch_hub():
        pass


def test_a_log_in_takes_the_token_given_or_the_environments(asked, monkeypatch):
    assert HubOperation.try_login() is False and not asked
    assert HubOperation.try_login("hf://secret") and HubOperation.try_login("ms://key")
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "env")
    assert HubOperation.try_login()
    assert [(name, args) for name, args, _ in asked] == [
        ("hf login", ("secret",)), ("ms login", ("key",)), ("ms login", ("env",)),
    ]  # fmt: skip
    with pytest.raises(NotFoundError, match=r"cannot log in to ms://: 403 for bad$"):
        HubOperation.try_login("bad")


@pytest.mark.parametrize("source", ["hf", "ms"])
def test_a_folder_goes_to_a_private_repository(asked, tmp_path, source):
    repository = f"{source}://me/mine"
    told = HubOperation.push_to_hub(
        repository, tmp_path, commit_message="m", revision=None, ignore_patterns=["*.pt"]
    )
    assert told == "commit 1"
    (create, name, create_options), (upload, _, options) = asked
    assert (create, name) == (f"{source} create", ("me/mine",))
    assert create_options.get("private") is True or create_options["visibility"] == "private"
    assert upload == f"{source} upload"
    assert options == {"repo_id": "me/mine", "folder_path": str(tmp_path), "commit_message": "m",
                       "ignore_patterns": ["*.pt"]}  # fmt: skip
    del asked[:]
    assert HubOperation.create_model_repo(repository, private=False) == repository
    ((_, _, options),) = asked
    assert options.get("private") is False or options["visibility"] == "public"


def test_uploads_in_threads_are_waited_for(asked, tmp_path):
    future = HubOperation.async_push_to_hub("hf://me/one", tmp_path)
    HubOperation.async_push_to_hub("hf://bad/name", tmp_path)
    assert future.result() == "commit 1"
    assert HubOperation.wait_for(["hf://me/one"]) == {"hf://me/one": "commit 1"}
    assert HubOperation.wait_for() == {
        "hf://bad/name": "hub: cannot upload to 'hf://bad/name': 403 for bad"
    }
    assert HubOperation.wait_for() == {}
    with pytest.raises(InvalidError, match="no upload to 'hf://me/one' was begun"):
        HubOperation.wait_for(["hf://me/one"])


def test_data_sets_and_models_are_asked_for_in_each_hubs_words(asked, tmp_path):
    assert HubOperation.load_dataset("hf://o/n", "main", "test", streaming=True) == [2]
    assert HubOperation.load_dataset("ms://o/n", revision="v1", streaming=True) == [1]
    assert HubOperation.download_model(str(tmp_path), revision="v1") == str(tmp_path)
    assert HubOperation.download_model("hf://o/n") == "/hf"
    assert HubOperation.download_model("ms://o/n", revision="v1", ignore_model=True) == "/ms"
    assert HubOperation.download_file("hf://o/n", "dataset", "*.json", token="t") == "/hf"
    calls = [(name, args, options) for name, args, options in asked]
    assert calls[:3] == [
        ("hf dataset", ("o/n", "main"), {"split": "test", "streaming": True}),
        ("ms dataset", ("o/n",), {"subset_name": None, "split": "train", "version": "v1",
                                  "use_streaming": True}),
        ("hf snapshot", ("o/n",), {}),
    ]  # fmt: skip
    name, _, options = calls[3]
    assert name == "ms snapshot" and options["revision"] == "v1"
    assert "*.safetensors" in options["ignore_patterns"]
    assert calls[4] == (
        "hf snapshot", ("o/n",), {"repo_type": "dataset", "allow_patterns": "*.json", "token": "t"},
    )  # fmt: skip


def test_a_bare_id_of_a_data_set_asks_hugging_face_first(asked, monkeypatch, logged):
    assert HubOperation.load_dataset("o/n") == [2]
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert HubOperation.load_dataset("o/n") == [1]
    (text,) = logged
    assert text.startswith("hub: 'o/n' is ms://o/n: hub: 'o/n' needs the package datasets, which")


def test_what_is_wrong_is_named(asked, tmp_path, monkeypatch):
    for call, text in (
        (lambda: HubOperation.push_to_hub("hf://a/b", tmp_path / "no"), "no does not exist"),
        (lambda: HubOperation.push_to_hub("hf://a/b", tmp_path, colour=1),
         "push_to_hub: unknown argument 'colour'; it takes commit_description, commit_message"),
        (lambda: HubOperation.push_to_hub("", tmp_path), "repo_id is '', it must be a text"),
        (lambda: HubOperation.push_to_hub("a/b", None), "folder_path is None, it must be a path"),
        (lambda: HubOperation.push_to_hub("a/b", tmp_path, private=1), "private is 1, it must be"),
        (lambda: HubOperation.download_file("a/b", "space"), "repo_type is 'space', it must be"),
        (lambda: HubOperation.download_model("a/b", colour=1), "download_model: unknown argument"),
        (lambda: HubOperation.download_model("a/b", token="t"), "a token is given for 'a/b', but"),
        (lambda: HubOperation.load_dataset("a/b", token="t"), "a token is given for 'a/b', but"),
        (lambda: HubOperation.try_login(3), "token is 3, it must be a text"),
    ):  # fmt: skip
        with pytest.raises((InvalidError, NotFoundError), match=text):
            call()
    assert not asked
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(NotAvailableError, match="needs the package modelscope, which is not inst"):
        HubOperation.create_model_repo("a/b")
