"""Bad input of a client's user: each is refused by name, with what to do, and changes nothing."""

import socket

import numpy as np
import pytest
from features import drawn

import twinkle_client
from twinkle.data_format import SampledSequence, SampleResponse
from twinkle.errors import ConflictError, InvalidError, NotAvailableError, NotFoundError
from twinkle_client import NoServerError
from twinkle_client.model import MultiLoraTransformersModel
from twinkle_client.sampler import vLLMSampler


@pytest.fixture
def nobody():
    """A URL where nothing answers."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{one.getsockname()[1]}"


def test_without_a_server_the_remedy_is_named_at_once(connect, nobody):
    with pytest.raises(NoServerError, match=r"no answer from .*start `twinkle serve` there, or"):
        connect(nobody)


def test_a_wrong_key_is_refused(connect):
    with pytest.raises(InvalidError, match=r"key is unknown: give .* api_key.*status 401 of POST"):
        connect(api_key="wrong")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"base_url": "localhost:8000"}, "base_url is 'localhost:8000', it must be http://HOST"),
        ({"base_url": "http://a:b"}, "base_url is 'http://a:b'"),
        ({"base_url": "ftp://a"}, "base_url is 'ftp://a'"),
        ({"base_url": 3}, "base_url is 3"),
        ({"api_key": "a\nb: c"}, "api_key has characters"),
        ({"api_key": "schlüssel"}, "api_key has characters"),
        ({"session_heartbeat_interval": 0}, "session_heartbeat_interval is 0, it must be a number"),
        ({"session_metadata": [1]}, r"session_metadata is \[1\], it must be a dict"),
        ({"timeout": 3}, "init_twinkle_client: unknown argument 'timeout'"),
    ],
)
def test_wrong_arguments_of_a_client(connect, arguments, text):
    with pytest.raises(InvalidError, match=text):
        connect(**arguments)


@pytest.mark.parametrize("kind", [MultiLoraTransformersModel, vLLMSampler])
def test_models_and_samplers_need_a_client_and_a_name_that_is_served(connect, kind):
    with pytest.raises(InvalidError, match=r"there is no open client: call init_twinkle_client"):
        kind("tiny")
    client = connect()
    with pytest.raises(NotFoundError, match="model 'nothing/here' is not served"):
        kind("ms://nothing/here")
    for wrong in (None, "", 3):
        with pytest.raises(InvalidError, match=f"model_id of {kind.__name__} is"):
            kind(wrong)
    with pytest.raises(InvalidError, match=r"takes model_id alone, not device_mesh, mixed_prec"):
        kind("tiny", mixed_precision="no", device_mesh=None)
    client.close()
    with pytest.raises(InvalidError, match="there is no open client"):
        kind("tiny")


def test_an_adapter_must_be_named_and_there(client):
    model = MultiLoraTransformersModel("tiny")
    for call in (model.step, model.save, lambda: model.forward_backward(inputs=drawn([4]))):
        with pytest.raises(InvalidError, match="needs an adapter: call add_adapter_to_model"):
            call()
    with pytest.raises(NotFoundError, match="no adapter 'other'"):
        model.step(adapter_name="other")
    with pytest.raises(InvalidError, match="adapter_name is 3"):
        model.step(adapter_name=3)
    with pytest.raises(NotFoundError, match="no training run"):
        vLLMSampler("tiny").sample({"input_ids": [1]}, {"max_tokens": 1}, adapter_name="other")


ROWS = drawn([6, 4])


@pytest.mark.parametrize(
    ("kind", "text", "call"),
    [
        (ConflictError, "there is an adapter", lambda m: m.add_adapter_to_model("own", {"r": 2})),
        (InvalidError, "config is 'folder'", lambda m: m.add_adapter_to_model("a", "folder")),
        (InvalidError, "r is 0", lambda m: m.add_adapter_to_model("a", {"r": 0})),
        (InvalidError, "adapter_name is ''", lambda m: m.add_adapter_to_model("", {"r": 2})),
        (InvalidError, "inputs is empty", lambda m: m.forward_backward(inputs=[])),
        (InvalidError, r"inputs\[0\] is 'text', it must be an InputFeature or a Traj",
         lambda m: m.forward_only(inputs="text")),
        (InvalidError, r"inputs\[0\] is None.* with new_input_feature",
         lambda m: m.forward(inputs=SampleResponse([SampledSequence("stop", [1])]))),
        (InvalidError, "labels", lambda m: m.forward_backward(
            inputs=[{"input_ids": np.arange(4), "labels": np.arange(3)}])),
        (InvalidError, "input_ids", lambda m: m.forward_backward(
            inputs=[{"input_ids": np.zeros((2, 2), int)}])),
        (InvalidError, "4000", lambda m: m.forward_backward(
            inputs=[{"input_ids": [1, 4000], "labels": [2, -100]}])),
        (InvalidError, "inputs/0/user_data is .*: a server runs no code", lambda m: m.forward(
            inputs=[ROWS[0] | {"user_data": object()}])),
        (InvalidError, "loss_scale/1 is nan, it must be a finite", lambda m: m.forward(
            inputs=[ROWS[0] | {"loss_scale": [1.0, float("nan")]}])),
        (InvalidError, "advantages", lambda m: m.forward_backward(inputs=ROWS, advantages=[1.0])),
        (InvalidError, "colour", lambda m: m.calculate_metric(colour=1)),
        (InvalidError, "NoLoss", lambda m: m.set_loss("NoLoss")),
        (NotAvailableError, "loss_cls is .*: give the name of a class",
         lambda m: m.set_loss(lambda inputs, outputs: 0)),
        (InvalidError, "lr", lambda m: m.set_optimizer("AdamW", lr=-1.0)),
        (InvalidError, "Sideways", lambda m: m.set_lr_scheduler("Sideways")),
        (InvalidError, "needs a backward", lambda m: m.clip_grad_and_step()),
        (InvalidError, "needs a forward", lambda m: m.calculate_loss()),
        (InvalidError, "is_training", lambda m: m.calculate_metric(is_training="yes")),
        (InvalidError, "must be twinkle://", lambda m: m.load("/etc")),
        (InvalidError, "the checkpoint is None", lambda m: m.load(None)),
        (InvalidError, "the checkpoint is None", lambda m: m.upload_to_hub({}, "ms://a/b")),
        (InvalidError, "hub_model_id is ''", lambda m: m.upload_to_hub("twinkle://a", "")),
        (InvalidError, "poll_interval is 0", lambda m: m.upload_to_hub("a", "b", poll_interval=0)),
        (NotFoundError, "no training run", lambda m: m.load("twinkle://nobodys/weights/a")),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_right_is_refused_and_changes_nothing(model, kind, text, call):
    before = model.get_state_dict(), model.get_train_configs()
    with pytest.raises(kind, match=text):
        call(model)
    after = model.get_state_dict(), model.get_train_configs()
    assert before[1] == after[1]
    assert {k: v.tobytes() for k, v in before[0].items()} == {
        k: v.tobytes() for k, v in after[0].items()
    }


@pytest.mark.parametrize(
    ("text", "arguments", "options"),
    [
        ("max_tokens is given next to", ({"temperature": 1.0},), {"max_tokens": 2}),
        ("num_samples is 2, sampling_params say 3", ({"num_samples": 3},), {"num_samples": 2}),
        ("num_samples is 0", (), {"num_samples": 0}),
        ("temperature", ({"temperature": -1.0},), {}),
        ("colour", ({"colour": 1},), {}),
        ("sampling_params is 'warm'", ("warm",), {}),
        ("adapter_uri is 3", (), {"adapter_uri": 3}),
        ("must be twinkle://", ({"max_tokens": 1},), {"adapter_uri": "../secret"}),
    ],
)
def test_wrong_arguments_of_a_sampler(client, text, arguments, options):
    with pytest.raises(InvalidError, match=text):
        vLLMSampler("tiny").sample({"input_ids": [1, 2]}, *arguments, **options)


def test_what_the_processor_service_had_is_refused_with_what_to_use():
    import twinkle.dataloader
    import twinkle.dataset
    from twinkle_client.dataloader import DataLoader
    from twinkle_client.dataset import Dataset, DatasetMeta

    assert DataLoader is twinkle.dataloader.DataLoader and Dataset is twinkle.dataset.Dataset
    assert DatasetMeta is twinkle.dataset.DatasetMeta
    for module in ("processor", "rollout", "auto"):
        with pytest.raises(NotAvailableError, match=f"twinkle_client.{module}: .* run in the clie"):
            __import__(f"twinkle_client.{module}")


def test_an_adapter_is_not_added_to_a_sampler_by_itself(client):
    with pytest.raises(NotAvailableError, match="by adapter_name, or saved ones by adapter_uri"):
        vLLMSampler("tiny").add_adapter_to_sampler("own", {"r": 2})


def test_a_lost_server_is_named(client, monkeypatch, nobody):
    connection = client.connection
    monkeypatch.setattr(connection, "patience", 0)
    monkeypatch.setattr(connection, "_place", twinkle_client.connection.urlsplit(nobody))
    connection._threads = twinkle_client.connection.threading.local()
    with pytest.raises(NoServerError, match="start `twinkle serve`"):
        client.list_training_runs()
    assert not client.health_check()
