"""How the ranks of a mesh find each other, where that fails."""

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from twinkle import DeviceMesh
from twinkle.engine import group, ranks
from twinkle.engine.ranks import _in_order
from twinkle.errors import InternalError, NotAvailableError


class Watch:
    """Hears that a rank has gone at the `when`th look."""

    def __init__(self, when):
        self.left = when

    def check(self):
        self.left -= 1
        if self.left <= 0:
            raise InternalError("mesh: rank 1 has gone")


@pytest.fixture
def place():
    made = object.__new__(group._Place)
    made.index, made.size, made.timeout, made._store = 0, 3, 5.0, None
    return made


@pytest.fixture
def failing(monkeypatch):
    """process_group fails with this text, as Gloo's does."""

    def fail(text):
        def process_group(*_):
            raise RuntimeError(text)

        monkeypatch.setattr(group, "process_group", process_group)

    return fail


def test_the_watch_is_asked_why_a_group_could_not_be_made(place, failing):
    failing("Connection reset by peer")
    with pytest.raises(InternalError, match="rank 1 has gone"):
        place.group("1/door", (0, 3), Watch(3))


def test_a_rank_whose_key_has_not_come_is_named(place, failing, monkeypatch):
    monkeypatch.setattr(group, "_NEWS_S", 0.1)
    failing("wait timeout after 5000ms, keys: /twinkle/0/1/door/cpu/0/2")
    with pytest.raises(NotAvailableError, match="of 3: rank 2 of the group has not come: wait"):
        place.group("1/door", (0, 3), Watch(10**9))


def test_meshes_of_the_same_processes_in_another_order_are_others():
    both, one = DeviceMesh.from_sizes(dp_size=2, fsdp_size=2), DeviceMesh.from_sizes(dp_size=4)
    assert both.mesh.flatten().tolist() == one.mesh.flatten().tolist()
    assert (_in_order(both), _in_order(one)) == ((0, 2, 1, 3), (0, 1, 2, 3))
    same = DeviceMesh(np.array([[0, 2], [1, 3]]), ("dp", "fsdp"))
    assert _in_order(same) == _in_order(both)


def test_who_is_late_is_warned_of_once_and_only_while_one_waits(monkeypatch):
    said, texts = [], [""]
    logger = SimpleNamespace(warning=lambda text, **_: said.append(text))
    watch = SimpleNamespace(late=lambda: texts[-1])
    waiting = SimpleNamespace(Waiting=lambda *_: nullcontext())
    monkeypatch.setattr(ranks, "core", lambda: waiting)
    monkeypatch.setattr(ranks, "timeout_seconds", lambda: 0.04)
    monkeypatch.setattr(ranks, "get_logger", lambda: logger)
    warn = ranks._warn_of_late

    def begins_late(*args):
        time.sleep(0.05)
        warn(*args)

    monkeypatch.setattr(ranks, "_warn_of_late", begins_late)
    threads = set(threading.enumerate())
    with ranks.waits_at(watch, "a sync"):
        texts.append("rank 1 is late")
        end = time.monotonic() + 20
        while not said and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1)  # in which it would be said again
    assert said == ["infra: rank 1 is late"] and set(threading.enumerate()) <= threads
    with ranks.waits_at(watch, "a sync"):  # a warning has named it
        time.sleep(0.1)
    assert len(said) == 1


def test_groups_of_torch_wait_for_the_timeout(monkeypatch):
    dist = pytest.importorskip("torch.distributed")
    asked = []
    monkeypatch.setenv("TWINKLE_DIST_TIMEOUT_SECONDS", "7")
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "new_group", lambda ranks, timeout: asked.append((ranks, timeout)))
    DeviceMesh.from_sizes(dp_size=2, fsdp_size=2).create_process_group("dp")
    assert [(ranks, t.total_seconds()) for ranks, t in asked] == [([0, 1], 7), ([2, 3], 7)]
