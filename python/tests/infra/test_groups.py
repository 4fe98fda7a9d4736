"""The ranks of a mesh: their order, and who of them is late."""

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from twinkle import DeviceMesh
from twinkle.engine import ranks
from twinkle.engine.ranks import _in_order


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
