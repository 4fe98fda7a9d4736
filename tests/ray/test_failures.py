"""Refusals before anything starts, the death of a worker, and the ends of runs."""

import inspect
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import tomllib
import types
from contextlib import suppress
from pathlib import Path

import pytest
from remote.things import Thing

import twinkle
from twinkle import (
    DeviceGroup,
    DeviceMesh,
    InternalError,
    InvalidError,
    LoraConfig,
    NotAvailableError,
    TransformersModel,
)
from twinkle.engine.group import timeout_seconds
from twinkle.errors import ConflictError
from twinkle.logger import get_logger
from twinkle.remote.cluster import VERSION, Cluster, _environment

# As of conftest.py's clusters.
NO_NICER = {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
ENDS, TOKENS = (Path(__file__).with_name(name) for name in ("ends.py", "tokens.py"))


def gone(pid):
    return not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()


def wait_until(true, seconds, told=lambda: ""):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, told()
        time.sleep(0.1)


# ---- bad input


def refused(text, kind=InvalidError, **arguments):
    with pytest.raises(kind, match=text):
        twinkle.initialize(mode="ray", placement_seconds=1, **arguments)
    assert twinkle.infra.current_run().cluster is None


def test_groups_that_cannot_be_are_refused_before_a_cluster_is_looked_for(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where none is
    two, shared = DeviceGroup("two", [0, 1], "GPU"), DeviceGroup("shared", [1, 2], "GPU")
    refused("groups two and shared both have rank 1: give one of them", groups=[two, shared])
    mesh = DeviceMesh.from_sizes(dp_size=4)
    refused("has 4 ranks, but no group has: two has 2: make it of as many as", groups=[two],
            global_device_mesh=mesh)  # fmt: skip
    refused("global_device_mesh is 'x', it must be a DeviceMesh", groups=[two],
            global_device_mesh="x")  # fmt: skip
    refused("global_device_mesh has tp_size 2; this version has dp and fsdp", NotAvailableError,
            groups=[two], global_device_mesh=DeviceMesh.from_sizes(tp_size=2))  # fmt: skip
    monkeypatch.delenv("TWINKLE_DEVICE")
    refused("device_type 'npu', this version runs on 'cpu' and 'cuda': set", NotAvailableError,
            groups=[DeviceGroup("two", [0, 1], "npu")])  # fmt: skip
    monkeypatch.setenv("TWINKLE_CPU_PG_CPUS_PER_PROC", "0")
    refused("CPUS_PER_PROC is 0, but the workers of group few have no GPU either",
            groups=[DeviceGroup("few", 2, "cpu")])  # fmt: skip
    monkeypatch.delenv("TWINKLE_CPU_PG_CPUS_PER_PROC")
    with pytest.raises(InvalidError, match="placement_seconds is -1, it must be"):
        twinkle.initialize(mode="ray", placement_seconds=-1, groups=[two])
    with pytest.raises(InvalidError, match="initialize has no model in mode 'ray'"):
        twinkle.initialize(mode="ray", model="x", groups=[two])
    with pytest.raises(InvalidError, match="initialize has no placement_seconds in mode 'local'"):
        twinkle.initialize(placement_seconds=1)


def test_the_seconds_that_nobody_has_given(monkeypatch):
    monkeypatch.delenv("TWINKLE_DIST_TIMEOUT_SECONDS", raising=False)
    given = inspect.signature(Cluster).parameters
    assert given["placement_seconds"].default == 30
    assert timeout_seconds() == 60


def test_a_cluster_that_does_not_answer_is_refused_at_once(monkeypatch):
    two = [DeviceGroup("two", 2, "cpu")]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"nowhere.invalid:{port}", "127.0.0.1:99999"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        refused(f"RAY_ADDRESS is '{address}', but nobody answers there .*: start it with ray start",
                NotAvailableError, groups=two)  # fmt: skip
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda _: f"::1:{port}")
    refused(f"ray start has noted a cluster at '::1:{port}', but nobody", NotAvailableError,
            groups=two)  # fmt: skip


@pytest.mark.parametrize(("mode", "count"), [(None, 1), ("disabled", 0), ("token", 0)])
def test_a_cluster_without_a_token_is_joined_with_what_gives_it_one(
    mode, count, monkeypatch, tmp_path
):
    ray = pytest.importorskip("ray")
    told = []
    monkeypatch.setattr(get_logger(), "warning", told.append)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("HOME", str(tmp_path))  # in which there is no token
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    joined = object.__new__(Cluster)
    joined._ray = ray
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        joined._connect(1)
    assert len(told) == count
    for text in told:
        assert text.startswith(f"infra: the Ray cluster at {address} asks for no token, so whoever")
        assert "before `ray start`, once `ray get-auth-token --generate > /dev/null`, and" in text
        assert "on every node `export RAY_AUTH_MODE=token`" in text


def test_a_card_is_visible_to_workers_of_groups_on_cards_alone(monkeypatch):
    monkeypatch.delenv("TWINKLE_DEVICE")
    for group, seen in (
        (DeviceGroup("none", 2), ""),
        (DeviceGroup("cpus", 2, "cpu"), ""),
        (DeviceGroup("cards", 2, "cuda"), None),  # as Ray says
    ):
        environment = _environment(group, 0, ("127.0.0.1", 1))
        assert environment.get("CUDA_VISIBLE_DEVICES") == seen


def test_without_the_package_its_version_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(r"needs the package ray 2.60: pip install 'ray==2.60.\*'", NotAvailableError,
            groups=[DeviceGroup("two", 2, "cpu")])  # fmt: skip
    other = types.ModuleType("ray")
    other.__version__, other.__file__ = "2.59.1", "/site/ray.py"
    monkeypatch.setitem(sys.modules, "ray", other)
    refused(r"the package ray is 2.59.1, it must be 2.60.\*: pip install 'ray==2.60.\*'",
            NotAvailableError, groups=[DeviceGroup("two", 2, "cpu")])  # fmt: skip
    script = types.ModuleType("ray")
    script.__file__ = "/home/me/ray.py"  # next to the one that runs
    monkeypatch.setitem(sys.modules, "ray", script)
    refused("`import ray` gives /home/me/ray.py, which is not the package ray: give that another",
            groups=[DeviceGroup("two", 2, "cpu")])  # fmt: skip


def test_the_version_is_that_of_the_extra():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["optional-dependencies"]["ray"] == [f"ray=={VERSION}.*"]


def test_groups_beyond_the_cluster_are_told_what_is_free(cluster):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        refused(
            "no place for group large after 1 s: its 7 ranks need 1 CPU each, 4 of 6 CPUs are free",
            groups=[DeviceGroup("fits", 2, "cpu"), DeviceGroup("large", 7, "cpu")],
        )
        patch.delenv("TWINKLE_DEVICE")
        refused(
            "need 1 CPU and 1 GPU each, .* 0 of 0 GPUs are free: .* or set TWINKLE_DEVICE=cpu to "
            "run on CPUs; where `ray start` of a node has ended with InvalidAuthToken, run `export "
            "RAY_AUTH_MODE=token` before it",
            groups=[DeviceGroup("cards", 2, "cuda")],
        )


# ---- a worker that dies, and another run


def test_a_killed_worker_ends_every_call_of_its_group_and_no_other(driver):
    with driver(two=2, other=1):
        thing, other = Thing(remote_group="two"), Thing(remote_group="other")
        kept, pids = thing.large(1), [f["pid"] for f in thing.facts()()]
        pending = thing.wait(60)
        os.kill(pids[1], signal.SIGKILL)
        began = time.monotonic()
        told = []
        for call in (pending, kept, thing.step, lambda: Thing(remote_group="two")):
            with pytest.raises(InternalError, match="rank 1 of group two is gone: ") as caught:
                call()
            told.append(str(caught.value))
        assert time.monotonic() - began < 30
        assert re.search(r" \(found in the call of Thing.wait at test_failures.py:\d+\)$", told[0])
        assert len(set(told)) == 1 and f"its process, pid {pids[1]} on " in told[0], told
        assert (
            "(dmesg) tells of a lack of memory, go on with less memory for each worker" in told[0]
        )
        wait_until(lambda: all(map(gone, pids)), 20)
        assert other.step() == 1


def test_a_call_that_was_interrupted_between_two_workers_ends_the_group(driver, monkeypatch):
    """The workers would wait for each other otherwise: one has the call, the other has not."""
    import ray

    with driver(two=2):
        thing = Thing(remote_group="two")
        options, sent = ray.actor.ActorMethod.options, []

        def interrupted(method, **given):
            sent.append(method)
            if len(sent) == 2:
                raise KeyboardInterrupt
            return options(method, **given)

        with monkeypatch.context() as patch:
            patch.setattr(ray.actor.ActorMethod, "options", interrupted)
            with pytest.raises(KeyboardInterrupt):
                thing.wait(60)
        with pytest.raises(
            InternalError, match=r"rank 1 of group two may not have got Thing\.wait"
        ):
            thing.step()


def test_a_worker_that_dies_before_its_result_has_been_fetched_is_told_by_name(driver):
    """By the group that waits for the result, which goes on."""
    with driver(two=2, other=1):
        thing, other = Thing(remote_group="two"), Thing(remote_group="other")
        pids = [fact["pid"] for fact in thing.facts()()]
        waiting = other.same(thing.wait(60))
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(InternalError, match=rf"^infra: a worker of group two.*pid {pids[0]} "):
            waiting()
        assert other.step() == 1
        with pytest.raises(InternalError, match="rank 0 of group two is gone: its process, pid"):
            thing.step()


def test_a_worker_that_stays_silent_after_another_has_failed_ends_its_group(driver, monkeypatch):
    monkeypatch.setenv("TWINKLE_DIST_TIMEOUT_SECONDS", "1")
    with driver(two=2, other=1):
        thing, other = Thing(remote_group="two"), Thing(remote_group="other")
        with pytest.raises(ConflictError, match="bad row"):
            thing.fail_beside(ConflictError("bad row"), 1000)()
        with pytest.raises(
            InternalError,
            match=r"rank 1 of group two has not answered for 1 s after another rank has failed in "
            r"Thing.fail_beside at test_failures.py:\d+: bad row \(rank 0 of group two",
        ):
            thing.step()
        with pytest.raises(InternalError, match="rank 1 of group two has not answered"):
            thing.facts()
        assert other.step() == 1


def test_a_worker_that_is_stopped_is_taken_for_lost_and_does_not_stay(
    driver, tiny_llama_dir, monkeypatch
):
    monkeypatch.setenv("TWINKLE_DIST_TIMEOUT_SECONDS", "2")
    with driver(two=2):
        model = TransformersModel(model_id=tiny_llama_dir, remote_group="two")
        model.add_adapter_to_model("default", LoraConfig(r=4))
        batch = [{"input_ids": [5, 6, 7 + i], "labels": [6, 7 + i, -100]} for i in range(4)]
        model.forward_backward(inputs=batch)()
        pids = [fact["pid"] for fact in Thing(remote_group="two").facts()()]
        os.kill(pids[1], signal.SIGSTOP)
        began = time.monotonic()
        told = ""
        while "rank 1 of group two is gone: its process, pid" not in told:
            with pytest.raises(InternalError, match="rank 1 ") as caught:
                model.forward_backward(inputs=batch)()
            told = str(caught.value)
            assert time.monotonic() - began < 40, told
        wait_until(lambda: all(map(gone, pids)), 20)


def test_a_process_that_is_stopped_is_ended_by_the_one_next_to_it_and_a_busy_one_not():
    script = (
        "import time; from twinkle.remote.stopped import end_when_stopped\n"
        "end_when_stopped(1); print('looked after', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "looked after\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=2)
            process.send_signal(signal.SIGSTOP)
            assert process.wait(timeout=60) == -signal.SIGKILL
            said = f"twinkle: infra: worker {process.pid} was stopped for 1 s, and is ended\n"
            assert process.stdout.read() == said
        finally:
            process.kill()


def test_a_worker_that_is_stopped_is_ended_where_no_rank_waits_for_it_and_a_busy_one_not(
    driver, monkeypatch
):
    monkeypatch.setenv("TWINKLE_DIST_TIMEOUT_SECONDS", "1")
    with driver(one=1, other=1):
        thing, other = Thing(remote_group="one"), Thing(remote_group="other")
        (pid,) = (fact["pid"] for fact in thing.facts()())
        assert thing.wait(2)() == [True]
        waiting = thing.wait(600)
        of_another = other.same(waiting)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(InternalError, match=rf"^infra: a worker of group one.* pid {pid} "):
            of_another()
        told = (
            rf"^infra: rank 0 of group one is gone: its process, pid {pid} on .* or was stopped "
            r"for TWINKLE_DIST_TIMEOUT_SECONDS .*\(found in the call of Thing.wait at test_failures"
        )
        with pytest.raises(InternalError, match=told):
            waiting()
        assert other.step() == 1


def test_what_is_of_an_earlier_run_is_refused(driver):
    with driver(one=1):
        thing = Thing(remote_group="one")
        lazy, cached = thing.doubled([1, 2]), thing.doubled([3])
        assert cached() == [6]
        (pid,) = (f["pid"] for f in thing.facts()())
        unanswered = thing.wait(60)
        twinkle.initialize(mode="ray", groups=[DeviceGroup("one", 1, "cpu")])
        wait_until(lambda: gone(pid), 20)
        new = Thing(remote_group="one")
        for use, what in (
            (thing.step, "Thing.step"),
            (lazy, "the result of Thing.doubled"),
            (unanswered, "the result of Thing.wait"),
            (lambda: new.same(lazy), "the result of Thing.doubled"),
            (lambda: new.same(thing), "Thing"),
        ):
            text = f"infra: {what} belongs to group one of a run that has ended: .*make the obj"
            with pytest.raises(InvalidError, match=text):
                use()
        assert cached() == [6] and new.step() == 1


# ---- the end of a run


@pytest.fixture(scope="module")
def ended(cluster):
    """{how: (worker's pid, process)} of drivers that have ended."""
    begun = {
        how: subprocess.Popen(
            [sys.executable, ENDS, how],
            env={**os.environ, **cluster.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for how in ("end", "exception", "exit", "interrupt", "kill", "terminate")
    }
    out = {}
    for how, process in begun.items():
        printed, process.err = process.communicate(timeout=280)
        out[how] = int(printed.split()[0]), process
    return out


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("end", 0),
        ("exception", 1),
        ("exit", 3),
        ("interrupt", 1),
        ("kill", -9),
        ("terminate", None),
    ],
)
def test_workers_end_with_their_driver(ended, how, status):
    pid, process = ended[how]
    assert process.returncode == status or (status is None and process.returncode != 0)
    wait_until(lambda: gone(pid), 30)
    assert "Unhandled" not in process.err and (how == "exception") == ("KeyError" in process.err)


def test_the_cluster_that_was_joined_stays_and_holds_nothing_of_them(ended, cluster):
    asked = (
        "import ray, time; ray.init(logging_level='error')\n"
        "from ray.util import placement_group_table as table\n"
        "from ray.util.state import list_actors\n"
        "for _ in range(100):\n"
        "  groups = [g for g in table().values() if g['state'] != 'REMOVED']\n"
        "  free = ray.available_resources().get('CPU')\n"
        "  if free == 6 and not groups: break\n"
        "  time.sleep(0.2)\n"
        "print(free, groups)"
    )
    assert cluster.run(["-c", asked]).stdout.strip() == "6.0 []"


# A cluster that ends well is that of the next test, too.
@pytest.mark.parametrize("how", ["interrupt", "kill", pytest.param("end", marks=pytest.mark.soak)])
def test_a_cluster_that_was_started_here_ends_with_the_driver(how):
    mark = secrets.token_hex(16)
    environment = {
        **os.environ, **NO_NICER, "RAY_ADDRESS": "local", "TWINKLE_TEST_MARK": mark,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, ENDS, how], env=environment, capture_output=True, text=True, timeout=280,
        start_new_session=True,
    )  # fmt: skip
    assert done.returncode == {"end": 0, "interrupt": 1, "kill": -9}[how], done.stderr
    # Two helpers of Ray's notice a killed driver after a minute.
    nothing_is_left(mark, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent") * (how == "kill"))


def test_a_cluster_that_was_started_here_is_joined_with_its_token_alone(cluster):
    """Nobody can read the token, and the next cluster does not get it."""
    environment = {name: value for name, value in os.environ.items() if "RAY_" not in name}
    mark = secrets.token_hex(16)
    environment |= {**NO_NICER, "TWINKLE_TEST_MARK": mark}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    here = cluster.environment
    done = subprocess.run(
        [sys.executable, TOKENS, here["RAY_ADDRESS"], here["RAY_AUTH_TOKEN_PATH"]],
        env=environment, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["joins"] == {"with the token": True, "without": False, "with another": False}
    assert told["files"] > 5 and told["files with the token"] == []
    assert told["commands with the token"] == 0 and told["left"] == []
    assert told["joined another"].endswith(f":{cluster.port}")
    nothing_is_left(mark)


def nothing_is_left(mark, but=()):
    """No process that has the mark goes on for long, but these."""
    try:
        wait_until(
            lambda: not [c for c in commands(pids_with(mark)) if not c.startswith(but)],
            30,
            lambda: commands(pids_with(mark)),
        )
    finally:
        for pid in pids_with(mark):
            os.kill(pid, signal.SIGKILL)


def commands(pids):
    out = []
    for pid in pids:
        with suppress(OSError):
            out.append(Path(f"/proc/{pid}/cmdline").read_text().replace(chr(0), " ").strip()[:200])
    return out


def pids_with(mark):
    out = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes() and not gone(path.parent.name):
                out.append(int(path.parent.name))
    return out
