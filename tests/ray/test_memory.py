"""A worker that is ended for lack of memory, without any being used up: Ray's monitor is told that
a node is full when it is not."""

import re

import pytest
from remote.things import Thing

from twinkle import InternalError

# The message of Ray 2.60's memory monitor.
FULL = (
    "Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.7, ID: "
    "ab12) was 60.81GB used / 64.00GB limit (0.950156), which exceeds the memory usage threshold"
)
SCRIPT = """
import twinkle
from remote.things import Thing
from twinkle import DeviceGroup

try:
    twinkle.initialize(mode="ray", groups=[DeviceGroup("small", 1, "cpu")])
    Thing(remote_group="small").wait(100)()
except twinkle.InternalError as error:
    print("told:", error)
"""


def test_a_worker_that_ray_has_ended_on_a_full_node_is_told_with_what_helps(driver, monkeypatch):
    import ray

    with driver(two=2):
        thing = Thing(remote_group="two")
        pending = thing.wait(60)

        def full(_):
            raise ray.exceptions.OutOfMemoryError(FULL)

        with monkeypatch.context() as patch:
            patch.setattr(ray, "get", full)
            patch.setattr(ray, "wait", lambda refs, **_: (refs[1:2], refs[2:]))
            with pytest.raises(InternalError) as caught:
                pending()
        told = str(caught.value)
        assert told.startswith(
            "infra: rank 1 of group two is gone: Ray has ended it since its node's memory was "
            "nearly full (60.81GB of 64.00GB on 10.0.0.7); nothing goes on"
        )
        assert "start anew from the last checkpoint, with less memory for each worker (" in told
        with pytest.raises(InternalError, match="memory was nearly full"):
            thing.step()


def test_rays_own_monitor_ends_a_worker_and_the_driver_is_told_so(empty_cluster):
    empty_cluster.start(
        "--head", "--node-ip-address=127.0.0.1", f"--port={empty_cluster.port}", "--num-cpus=2",
        "--num-gpus=0", "--include-dashboard=false", "--object-store-memory=100000000",
        f"--temp-dir={empty_cluster.folder / 't'}",
        RAY_memory_usage_threshold="0.0001", RAY_memory_monitor_refresh_ms="200",
    )  # fmt: skip
    done = empty_cluster.run(["-c", SCRIPT])
    assert "told: infra: rank 0 of group small" in done.stdout, done.stdout + done.stderr
    full = r"Ray has ended it since its node's memory was nearly full \(\S+GB of \S+GB on [\d.]+\)"
    assert re.search(full, done.stdout), done.stdout
    assert "with less memory for each worker" in done.stdout
