"""Drivers whose workers do not start, or that their cluster does not let in."""

import re
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from remote.things import Thing, begin_unevenly, never_answered

from twinkle import InternalError
from twinkle.errors import ConflictError
from twinkle.remote.cluster import _START_SECONDS, _begun
from twinkle.remote.group import Pending
from twinkle.remote.messages import Outcome

JOIN = """
import twinkle
from twinkle import DeviceGroup

try:
    twinkle.initialize(mode="ray", groups=[DeviceGroup("one", 1, "cpu")])
except twinkle.NotAvailableError as error:
    print("refused:", error, twinkle.infra.current_run().cluster)
"""


@pytest.fixture(scope="module")
def strangers(cluster, tmp_path_factory):
    """{how: a driver that has ended}: both at the same time, since Ray tries for a while."""
    token = tmp_path_factory.mktemp("other") / "token"
    token.write_text(secrets.token_hex(32))
    given = {
        "another token": {"RAY_AUTH_TOKEN_PATH": str(token)},
        "no token": {"RAY_AUTH_MODE": "disabled"},
    }
    with ThreadPoolExecutor() as threads:
        begun = {how: threads.submit(cluster.run, ["-c", JOIN], **given[how]) for how in given}
        return {how: done.result() for how, done in begun.items()}


@pytest.mark.parametrize("how", ["another token", "no token"])
def test_a_cluster_with_another_token_refuses_a_driver_which_says_what_must_be_alike(
    how, strangers, cluster
):
    done = strangers[how]
    told = rf"refused: infra: the Ray cluster at 127.0.0.1:{cluster.port} cannot be reached: .*: "
    told += "RAY_AUTH_MODE and ~/.ray/auth_token must be those of all its nodes .* None$"
    assert re.search(told, done.stdout, re.MULTILINE | re.DOTALL), done.stdout + done.stderr


def test_each_group_is_a_placement_group_with_a_place_for_each_rank(driver):
    with driver(two=2, one=1):
        from ray.util import placement_group_table

        placed = [g for g in placement_group_table().values() if g["state"] == "CREATED"]
        assert sorted(len(group["bundles"]) for group in placed) == [1, 2]
        pids = [f["pid"] for name in ("two", "one") for f in Thing(remote_group=name).facts()()]
        assert len(set(pids)) == 3


def test_a_worker_that_does_not_start_is_named_after_a_limit(driver, monkeypatch):
    monkeypatch.setattr("twinkle.remote.cluster.address", never_answered)
    monkeypatch.setattr("twinkle.remote.cluster._START_SECONDS", 1)
    monkeypatch.setattr("twinkle.remote.cluster.timeout_seconds", lambda: 0.1)
    monkeypatch.setenv("TWINKLE_CPU_PG_CPUS_PER_PROC", "3")
    told = (
        r"^infra: ranks \[0\] of group two have not started: the start of a process has not ended "
    )
    told += r"in 1 s: look at the logs of their workers .* set TWINKLE_DIST_TIMEOUT_SECONDS to"
    with pytest.raises(InternalError, match=told), driver(two=2):
        pass
    monkeypatch.undo()
    monkeypatch.setenv("TWINKLE_CPU_PG_CPUS_PER_PROC", "3")
    with driver(two=2):  # where those were: all CPUs of the cluster
        assert Thing(remote_group="two").step() == 1


def test_a_worker_that_cannot_begin_is_told_while_another_waits_for_it(driver, monkeypatch):
    monkeypatch.setattr("twinkle.infra.begin_worker", begin_unevenly)
    began = time.monotonic()
    told = r"^thing: it cannot begin \(rank 1 of group two, in the call of initialize\(\) in each "
    with pytest.raises(ConflictError, match=told), driver(two=2):
        pass
    assert time.monotonic() - began < 300


def test_all_ranks_that_have_not_begun_are_named(monkeypatch):
    """After ten minutes unless ten timeouts are more."""
    now, waited = [0.0], []

    def wait(refs, num_returns, timeout):
        if len(refs) == 3:
            return [refs[1]], [refs[0], refs[2]]
        waited.append(timeout)
        now[0] += timeout
        return [], refs

    def send(what, *_):
        pending = Pending(workers, what)
        pending.refs, pending.kept = dict(enumerate("abc")), dict(enumerate("xyz"))
        return pending

    workers = SimpleNamespace(name="three", send=send, check_run=lambda what: None)
    monkeypatch.setattr("ray.wait", wait)
    monkeypatch.setattr("ray.get", lambda ref: Outcome())
    monkeypatch.setattr("twinkle.remote.group.time", SimpleNamespace(monotonic=lambda: now[0]))
    for seconds, limit in (("5", _START_SECONDS), ("100", 1000)):
        monkeypatch.setenv("TWINKLE_DIST_TIMEOUT_SECONDS", seconds)
        text = (
            rf"ranks \[0, 2\] of group three have not started: a start has not ended in {limit} s"
        )
        with pytest.raises(InternalError, match=text):
            _begun(workers, "a start", None, [])
        assert waited[-1] == limit
    assert _START_SECONDS == 600
