"""A client's lists: the server, its runs and checkpoints, and uploads of these to a hub."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from features import drawn
from service.twinkle.conftest import with_adapter

from twinkle.errors import InternalError, NotFoundError
from twinkle_client.model import MultiLoraTransformersModel


def test_a_server_says_what_it_has(client):
    assert client.health_check()
    assert [m.model_name for m in client.get_server_capabilities().supported_models] == ["tiny"]
    before = client.get_capacity_info()
    assert before.max_loras == before.used_loras + before.free_loras
    with_adapter(client)
    assert client.get_capacity_info().used_loras == before.used_loras + 1


def test_runs_and_checkpoints_are_listed_and_deleted(connect, served):
    client = connect()
    own = [f"{client.session_id}-{name}" for name in ("one", "two")]
    first, second = with_adapter(client, "one"), with_adapter(client, "two")
    paths = [first.save(f"step-{i}") for i in range(2)]
    sampler = second.save("step-0", is_sampler=True)
    assert sampler.twinkle_path == sampler.checkpoint_dir == str(sampler)

    runs = client.list_training_runs(limit=2)
    assert [run.training_run_id for run in runs] == own[::-1]
    page, cursor = client.list_training_runs_with_cursor(limit=1, offset=1)
    assert [run.training_run_id for run in page] == own[:1]
    assert (cursor.limit, cursor.offset) == (1, 1) and cursor.total_count >= 2
    run = client.get_training_run(own[0])
    assert (run.base_model, run.is_lora, run.lora_rank) == ("tiny", True, 4)
    assert isinstance(run.last_request_time, datetime)
    assert json.loads(run.model_dump_json(indent=2))["training_run_id"] == own[0]
    assert own[0] in [run.training_run_id for run in client.find_training_run_by_model("tiny")]
    assert client.find_training_run_by_model("another") == []

    found = client.list_checkpoints(own[0])
    assert [each.checkpoint_id for each in found] == ["weights/step-0", "weights/step-1"]
    assert [each.twinkle_path for each in found] == paths
    files = served.folder(paths[0]).rglob("*")
    assert found[0].size_bytes == sum(file.stat().st_size for file in files)
    assert isinstance(found[0].time, datetime) and "T" in found[0].model_dump_json()
    assert client.get_latest_checkpoint_path(own[0]) == paths[1]
    place = client.get_checkpoint_path(own[0], "weights/step-0")
    assert (place.twinkle_path, place.checkpoint_type) == (paths[0], "weights")
    assert client.get_checkpoint_twinkle_path(own[0], "weights/step-0") == paths[0]
    info = client.get_weights_info(paths[0])
    assert (info.training_run_id, info.base_model, info.lora_rank) == (own[0], "tiny", 4)

    assert client.delete_checkpoint(own[0], "weights/step-1").success
    assert not served.folder(paths[1]).exists()
    assert [each.twinkle_path for each in client.list_checkpoints(own[0])] == paths[:1]
    with pytest.raises(NotFoundError, match="no checkpoint 'weights/step-1'"):
        client.delete_checkpoint(own[0], "weights/step-1")
    with pytest.raises(NotFoundError, match="step-1"):
        first.load(paths[1])


def test_what_is_anothers_is_not_there(connect):
    client = connect()
    path = with_adapter(client).save("mine")
    run = f"{client.session_id}-own"
    other = connect(api_key="other")
    assert run not in [each.training_run_id for each in other.list_training_runs(limit=100)]
    calls = [
        lambda: other.get_training_run(run),
        lambda: other.list_checkpoints(run),
        lambda: other.get_checkpoint_path(run, "weights/mine"),
        lambda: other.get_weights_info(path),
        lambda: other.delete_checkpoint(run, "weights/mine"),
        lambda: with_adapter(other).load(path),
        lambda: MultiLoraTransformersModel("tiny", client=other).upload_to_hub(path, "hf://me/x"),
    ]
    for call in calls:
        with pytest.raises(NotFoundError):
            call()
    assert client.list_checkpoints(run)


def test_an_upload_is_waited_for_and_its_failure_is_told(client, monkeypatch):
    """The hub is a folder; the real ones' clients are tried in python/tests/outside."""
    from concurrent.futures import ThreadPoolExecutor

    from twinkle.hub import HubOperation

    hub, pool = {}, ThreadPoolExecutor(1)

    def push(repository, folder, token=None):
        def upload():
            if token != "secret":
                raise NotFoundError(f"hub: cannot upload to {repository!r}: 401")
            hub[repository] = {file.name for file in Path(folder).iterdir()}

        return pool.submit(upload)

    monkeypatch.setattr(HubOperation, "async_push_to_hub", push)
    model = with_adapter(client)
    model.forward_backward(inputs=drawn([8]))
    model.clip_grad_and_step()
    path = model.save("for the hub")
    alone = MultiLoraTransformersModel("tiny")  # an upload needs no adapter
    for given in (path, path.model_dump()):
        alone.upload_to_hub(given, "ms://me/mine", hub_token="secret", poll_interval=0.01)
    assert "adapter_model.safetensors" in hub["ms://me/mine"]
    with pytest.raises(InternalError, match=r"upload to ms://me/mine failed: hub: cannot .* 401"):
        alone.upload_to_hub(path, "ms://me/mine", poll_interval=0.01)
