"""Results of calls to objects in workers: where they stay, and what errors become."""

import gc
import os
import threading
from pathlib import Path

import pytest
from remote.things import Thing

from twinkle import (
    DeviceMesh,
    InternalError,
    InvalidError,
)
from twinkle.errors import ConflictError, NotFoundError
from twinkle.remote.group import together
from twinkle.remote.lazy import cut

# ---- lazy results


def test_a_lazy_result_is_called_iterated_measured_and_indexed(thing):
    lazy = thing.doubled([1, 2, 3])
    assert len(lazy) == 3 and list(lazy) == [2, 4, 6] and lazy[1] == 4 and lazy() is lazy()
    assert repr(lazy) == "[2, 4, 6]" and 4 in lazy and bool(lazy)
    assert lazy.index(6) == 2
    assert float(thing.mean(1.0)) == 1.5


def test_a_lazy_result_of_the_same_group_stays_in_its_worker(thing):
    """Each worker takes its own part: nothing comes to the driver."""
    lazy = thing.doubled([1, 2, 3])
    refs, sent = [], lazy._pending
    kind, span, *_ = cut(lazy, 1, 2)._ticket(thing.group, refs)
    assert (kind, span, refs) == ("joined", (0, 1), [(sent.refs[1], sent.kept[1])])
    again = thing.doubled(lazy)
    assert not lazy._has_value
    assert again() == [4, 8, 12]


def test_a_lazy_result_goes_to_another_group_from_worker_to_worker(thing):
    other = Thing(remote_group="three")
    lazy = thing.doubled([1, 2, 3])
    assert other.same(lazy)() == [[2, 4, 6]] * 2
    assert other.doubled(lazy)() == [4, 8, 12]
    assert not lazy._has_value
    lazy()
    assert other.doubled(lazy)() == [4, 8, 12]  # the driver's value


def test_a_lazy_result_is_equal_to_what_its_value_is_equal_to(thing):
    lazy = thing.doubled([1, 2])
    assert lazy == [2, 4] and lazy != [2] and lazy == thing.doubled([1, 2])
    assert len({lazy, lazy}) == 1


def test_rows_of_the_first_worker_have_their_places_when_they_are_passed_on(thing):
    """A lazy list that one worker has made is cut, and its pieces know where they lie."""
    lazy = thing.rows_of_the_first(3)
    assert len(lazy) == 3 and not lazy._has_value
    assert thing.places(lazy)() == [([0, 1], 0), ([2], 2)]
    assert thing.places({"a": lazy})() == [({"a": [0, 1]}, 0), ({"a": [2]}, 2)]
    assert not lazy._has_value


def test_what_goes_to_another_group_is_never_unpickled_in_the_driver(run, tmp_path):
    made, other = Thing(remote_group="two"), Thing(remote_group="three")
    lazy = made.marked(str(tmp_path))
    other.same(lazy)()[0]  # its value is the driver's own
    pids = {file.name for file in tmp_path.iterdir()}
    assert str(os.getpid()) in pids
    for file in tmp_path.iterdir():
        file.unlink()
    lazy = made.marked(str(tmp_path))
    assert other.count(lazy)() == [1, 1]
    made.step()  # looks at the answers of the calls before it
    assert {file.name for file in tmp_path.iterdir()} == pids - {str(os.getpid())}


def test_a_result_of_one_worker_is_the_same_as_an_argument_and_here(run):
    """A list of all workers' results, where there is one worker."""
    facts = Thing(remote_group="one")
    assert facts.same(facts.last_stage())()[0] == facts.last_stage()() == [0]


def test_a_lazy_result_may_stand_inside_of_arguments(thing):
    large = thing.large(1)
    assert thing.size(large)() == 2 * 2 << 20
    assert thing.same({"a": [thing.doubled([1, 2])]})()[1] == {"a": [[2, 4]]}


def test_a_result_that_nobody_has_any_more_is_forgotten(thing):
    from ray._private.worker import global_worker

    lazy = thing.large(1)
    thing.step()
    kept = {ref.hex().encode() for ref in lazy._pending.kept.values()}
    counted = global_worker.core_worker.get_all_reference_counts
    assert kept <= set(counted())
    del lazy
    assert not kept & set(counted())


def test_lazy_calls_return_before_they_are_done_and_sync_ones_do_not(thing, tmp_path):
    told = tmp_path / "told"
    lazy = thing.wait(str(told))
    told.touch()  # the file ends the call
    assert lazy() == [True, True]
    with pytest.raises(InvalidError, match="thing: synced"):
        thing.synced()


# ---- errors


def answered(lazy, workers=None):
    """Waits until so many workers, or all, have ended the call."""
    import ray

    left = list(lazy._pending.left())
    ready, _ = ray.wait(left, num_returns=workers or len(left), timeout=60)
    assert ready


def test_an_error_keeps_its_class_and_says_where_the_driver_was(eager):
    with pytest.raises(NotFoundError, match="no such thing") as caught:
        eager.fail(NotFoundError("no such thing"))
    assert "rank 0 of group two, in the call of Thing.fail at test_results.py:" in str(caught.value)
    with pytest.raises(ZeroDivisionError, match="by nothing"):
        eager.fail(ZeroDivisionError("by nothing"), rank=1)
    assert any("in fail" in note for note in caught.value.__notes__)


def test_a_result_of_a_call_that_has_failed_raises_what_that_has_raised(run, tmp_path):
    made, other = Thing(remote_group="two"), Thing(remote_group="three")
    for seen in (False, True):
        failing = made.fail(ZeroDivisionError("by nothing"))
        answered(failing)
        if seen:
            with pytest.raises(ZeroDivisionError, match="by nothing"):
                failing()
        for use in (made.same, other.same, lambda x: other.same([x]), made.doubled):
            with pytest.raises(ZeroDivisionError, match="by nothing"):
                use(failing)
    told = tmp_path / "told"
    late = made.wait_and_fail(str(told), ZeroDivisionError("by nothing"))
    passed_on = other.same(late)  # nobody knows it yet
    told.touch()
    with pytest.raises(
        InternalError, match="group two has not made a result: ZeroDivisionError: by nothing"
    ):
        passed_on()
    with pytest.raises(ZeroDivisionError, match="by nothing"):
        made.step()
    assert made.step() == other.step() == 1


def test_stop_iteration_of_a_method_is_an_error_and_no_end(run):
    made = Thing(remote_group="two")
    with pytest.raises(StopIteration):
        made.stopped()()
    assert made.step() == 1


def test_an_error_that_nobody_waited_for_is_raised_by_the_next_call(thing):
    made = Thing(remote_group="two")
    answered(made.fail(ConflictError("late")))
    with pytest.raises(ConflictError, match=r"late.*test_results.py"):
        made.step()
    assert made.step() == 1


def test_a_call_waits_for_the_one_before_and_is_not_done_where_that_fails(run, tmp_path):
    told = tmp_path / "told"
    made, other = Thing(remote_group="two"), Thing(remote_group="three")
    failing = made.wait_and_fail(str(told), ConflictError("first"))
    assert other.step() == 1  # another group does not wait
    threading.Timer(0.5, told.touch).start()
    with pytest.raises(ConflictError, match=r"first .*Thing.wait_and_fail at test_results.py"):
        made.step()
    assert told.exists()
    assert made.steps_of_all()() == [0, 0]
    with pytest.raises(ConflictError, match="first"):
        failing()


def test_the_next_call_raises_what_one_worker_has_told_while_another_is_busy(run, tmp_path):
    told = tmp_path / "told"
    made = Thing(remote_group="two")
    answered(made.fail_beside(ConflictError("early"), str(told)), workers=1)
    with pytest.raises(ConflictError, match="early"):
        made.step()
    told.touch()
    assert made.step() == 1
    assert not Path(f"{told}.late").exists()


def test_a_worker_that_fails_long_after_another_goes_on_with_it(run, tmp_path):
    told = tmp_path / "told"
    made = Thing(remote_group="two")
    failing = made.fail_beside(ConflictError("first"), str(told), ConflictError("second"))
    with pytest.raises(ConflictError, match="first"):
        failing()
    told.touch()  # until now the other one has been busy
    answered(failing)
    assert made.step() == 1 and made.steps_of_all()() == [1, 1]
    assert not Path(f"{told}.late").exists()


def test_calls_that_wait_for_each_other_are_sent_once_both_groups_are_free(run, tmp_path):
    told = tmp_path / "told"
    made, other = Thing(remote_group="two"), Thing(remote_group="three")
    with pytest.raises(ConflictError, match="first"):
        made.fail_beside(ConflictError("first"), str(told), ConflictError("second"))()
    threading.Timer(1, told.touch).start()  # until then its other worker is busy, and then fails
    groups = made.group, other.group
    assert together(groups, made.steps_of_all, other.steps_of_all) == [[0, 0]] * 2
    other.fail(ConflictError("early"))
    with pytest.raises(ConflictError, match="early"):
        together(groups, lambda: pytest.fail("there is an error"))
    assert other.step() == 1


def test_a_workers_own_error_comes_before_what_another_was_told_of_it(run):
    made = Thing(remote_group="two")
    told = InvalidError("infra: rank 1, a batch: InvalidError: thing: bad row")
    with pytest.raises(InvalidError, match=r"^thing: bad row \(rank 1 of group two"):
        made.fail_beside(told, 0, InvalidError("thing: bad row"))()


def test_where_one_piece_cannot_be_sent_no_worker_begins(run):
    made = Thing(remote_group="two")
    gc.collect()  # objects that earlier tests have dropped are forgotten with the next call
    before = made.held()()
    other = Thing(remote_group="two")
    del other  # the workers forget an object with the next call that is sent
    with pytest.raises(InvalidError, match=r"argument 1 of Thing.take cannot be sent to group two"):
        made.take([1, threading.Lock()])
    assert made.steps_of_all()() == [0, 0]
    assert made.held()() == before


def test_what_cannot_be_sent_is_named(eager):
    with pytest.raises(InvalidError, match=r"argument 1 of Thing.same cannot be sent to group two"):
        eager.same(threading.Lock())
    with pytest.raises(InvalidError, match=r"make of Thing cannot be sent to group two"):
        Thing(make=threading.Lock(), remote_group="two")
    with pytest.raises(InvalidError, match=r"what Thing\.unsendable returns cannot be .*lock"):
        eager.unsendable()
    with pytest.raises(InvalidError, match=r"unreadable returns cannot be .* it is not known here"):
        eager.unreadable()
    other, failing = Thing(remote_group="three"), Thing(remote_group="two").unsendable()
    answered(failing)
    for use in (failing, lambda: other.same(failing)):
        with pytest.raises(InvalidError, match=r"what Thing\.unsendable returns cannot be sent"):
            use()
    passed_on = other.same(Thing(remote_group="two").unreadable())
    with pytest.raises(InvalidError, match=r"argument of Thing\.same cannot be .* not known here"):
        passed_on()
    assert eager.step() == 1


def test_a_call_that_takes_longer_than_its_timeout_is_left(run, tmp_path):
    told = tmp_path / "told"
    made = Thing(remote_group="three")
    with pytest.raises(TimeoutError, match=r"group three has not ended in 0.5 s"):
        made.wait_half_a_second(str(told))()
    told.touch()  # until now it has gone on
    made._ray_get_timeout = 60
    assert made.wait_half_a_second(0.6)() == [True, True]


def test_bad_placement_is_refused_before_anything_is_made(run):
    with pytest.raises(InvalidError, match="remote_group of a Thing is 'none', it must be a group"):
        Thing(remote_group="none")
    with pytest.raises(InvalidError, match=r"device_mesh of Thing has ranks .*, but group two has"):
        Thing(mesh=DeviceMesh.from_sizes(dp_size=4), remote_group="two")
    with pytest.raises(InvalidError, match="device_mesh of Thing is 3, it must be a DeviceMesh"):
        Thing(mesh=3, remote_group="two")
