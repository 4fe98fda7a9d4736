"""A server of Twinkle's protocol, its clients, and the local classes that it is compared with."""

import pytest
from service.relay import Relay

import twinkle_client
import twinkle_client.client

KEY = "a-key"


def reference():
    """The class Reference; skips without the engine."""
    pytest.importorskip("twinkle._core", reason="the extension is not built: make build")
    from service.twinkle.reference import Reference

    return Reference


@pytest.fixture(scope="module")
def served(tiny_llama_dir, tmp_path_factory):
    """A server: its url, and folder(path), where it keeps a twinkle:// path; its model is 'tiny',
    and KEY and 'other' are its keys."""
    it = reference()(tiny_llama_dir, tmp_path_factory.mktemp("state"), keys={KEY, "other"})
    yield it
    it.close()


@pytest.fixture
def connect(served, monkeypatch):
    """connect(...): a new client, as init_twinkle_client makes it; there is none before."""
    made = []
    monkeypatch.setattr(twinkle_client.client, "_current", None)

    def init(base_url=served.url, api_key=KEY, **kwargs):
        made.append(twinkle_client.init_twinkle_client(base_url, api_key, **kwargs))
        return made[-1]

    yield init
    for each in made:
        each.close()


@pytest.fixture
def client(connect):
    return connect()


@pytest.fixture
def model(client):
    """The model of the client, with an adapter 'own'."""
    return with_adapter(client)


def with_adapter(client=None, name="own", **options):
    from twinkle_client.model import MultiLoraTransformersModel

    model = MultiLoraTransformersModel("ms://tiny", client=client)
    model.add_adapter_to_model(name, {"r": 4, "target_modules": "all-linear"}, **options)
    model.set_optimizer("AdamW", lr=1e-2)
    return model


@pytest.fixture
def relay(served):
    """A Relay before the server."""
    it = Relay(served.url)
    yield it
    it.close()


@pytest.fixture(scope="session")
def local(tiny_llama_dir):
    """The local model of the same weights."""
    pytest.importorskip("twinkle._core", reason="the extension is not built: make build")
    from twinkle.model import MultiLoraTransformersModel

    return MultiLoraTransformersModel(tiny_llama_dir, max_loras=64)
