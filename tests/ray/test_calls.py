"""Calls to objects in workers: who gets which arguments, what becomes of the results."""

import gc
import json
import os
import pickle
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from remote.things import Loop, Thing

from twinkle import (
    DataLoader,
    Dataset,
    DatasetMeta,
    DeviceMesh,
    InternalError,
    InvalidError,
    LoraConfig,
    Template,
    TorchSampler,
    TransformersModel,
    infra,
)
from twinkle.errors import ConflictError, NotFoundError
from twinkle.processor import InputProcessor
from twinkle.remote.collect import join


@pytest.fixture(scope="module", autouse=True)
def run(driver):
    with driver(two=2, three=2):
        yield


@pytest.fixture(scope="module")
def thing(run):
    return Thing(remote_group="two")


@pytest.fixture(scope="module")
def eager(run):
    made = Thing(remote_group="two")
    made._lazy_collect = False
    return made


# ---- dispatch


def test_slice_cuts_lists_for_each_worker_and_gives_all_else_to_all(eager):
    assert eager.sliced([1, 2, 3], "x", more=(4, 5), d={"a": [1, 2]}) == [
        ([1, 2], ("x",), {"more": (4,), "d": {"a": [1, 2]}}),
        ([3], ("x",), {"more": (5,), "d": {"a": [1, 2]}}),
    ]


def test_slice_dp_cuts_lists_tensors_and_dicts_by_data_rank(eager):
    (a, named_a, from_a), (b, named_b, from_b) = eager.sliced_dp(
        [1, 2, 3], t=torch.arange(4), d={"n": np.arange(2), "c": 7}, text="all"
    )
    assert (a, b, from_a, from_b) == ([1, 2], [3], 0, 2)
    assert named_a["t"].tolist() == [0, 1] and named_b["t"].tolist() == [2, 3]
    assert named_a["d"]["n"].tolist() == [0] and named_b["d"]["n"].tolist() == [1]
    assert named_a["d"]["c"] == 7 and named_b["text"] == "all"


def test_a_worker_knows_its_place_in_what_was_cut_alone(eager):
    assert eager.first_rows() == [None, None]  # the same for both: neither has a place
    assert [first for _, _, first in eager.sliced_dp("a", t=1)] == [None, None]
    assert [first for _, _, first in eager.sliced_dp([1, 2, 3])] == [0, 2]


def test_ranks_that_share_a_data_rank_get_the_same_piece(run):
    made = Thing(mesh=DeviceMesh.from_sizes(tp_size=2), remote_group="two")
    made._lazy_collect = False
    (a, _, _) = made.sliced_dp([1, 2, 3])[0]
    assert a == [1, 2, 3]
    assert made.doubled([1, 2]) == [2, 4]  # once, not from each


def test_all_gives_everybody_the_same_and_a_callable_what_it_says(eager):
    assert eager.same([1, 2]) == [[1, 2], [1, 2]]
    assert eager.own(["bb", "a"]) == "bb!"


def test_a_rank_that_would_get_nothing_is_refused(eager):
    with pytest.raises(InvalidError, match="Thing: argument 1 has 1 entries for 2 ranks"):
        eager.doubled([1])


# ---- execute and collect


def test_results_are_joined_as_the_word_says(eager):
    assert eager.doubled([1, 2, 3]) == [2, 4, 6]
    assert eager.mean(1.0) == 1.5
    assert eager.sum(1).tolist() == [3, 3]
    assert eager.last_stage() == [0, 1] and eager.first_of_last_stage() == 0


def test_last_pp_asks_the_last_stage(run):
    made = Thing(mesh=DeviceMesh.from_sizes(pp_size=2), remote_group="two")
    made._lazy_collect = False
    assert made.last_stage() == [1] and made.first_of_last_stage() == 1


def test_first_is_done_by_the_first_worker_alone(run):
    made = Thing(remote_group="two")
    assert made.count_on_the_first()() == 1
    assert made.steps_of_all()() == [1, 0]


def test_what_cannot_be_joined_is_refused(eager):
    with pytest.raises(InvalidError, match=r"what collect='mean' adds is 'a', it must be a number"):
        join("mean", ["a", 1])
    with pytest.raises(InvalidError, match=r"what collect='flatten' joins is 1, it must be a list"):
        join("flatten", [[2], 1])


# ---- objects


def test_a_worker_is_a_rank_with_its_environment(eager, tmp_path):
    a, b = eager.facts()
    assert [a["RANK"], b["RANK"]] == ["0", "1"] and a["WORLD_SIZE"] == b["WORLD_SIZE"] == "2"
    assert a["LOCAL_RANK"] == "0" and a["TWINKLE_MODE"] == "ray"
    assert b["WORKER_NAME"] == "two-1" and a["MASTER_PORT"] == b["MASTER_PORT"]
    assert a["mesh"].world_size == 2 and a["folder"] == str(Path.cwd())
    assert a["card"] == b["card"] == ""  # on CPUs none is visible


def test_objects_of_a_group_share_its_processes(thing):
    other = Thing(other=thing, remote_group="two")
    facts = other.facts()()
    assert [f["pid"] for f in facts] == [f["pid"] for f in thing.facts()()]
    assert facts[0]["other"] == 0  # the other one's steps
    with pytest.raises(InvalidError, match="it must be an object of the same group"):
        Thing(other=thing, remote_group="three")


def test_functions_are_shipped_and_called_in_the_workers(run):
    here = os.getpid()
    made = Thing(lambda: os.getpid() != here, remote_group="two")
    assert [f["made"] for f in made.facts()] == [True, True]


def test_what_the_constructor_raises_arrives(run):
    with pytest.raises(ConflictError, match=r"thing: it is taken \(rank 0 of group two"):
        Thing(fail=True, remote_group="two")


def test_without_a_group_the_object_is_here(run):
    made = Thing()
    assert made.private() == 1 and made.same([1]) == [1]


def test_a_proxy_is_one_of_its_class_and_has_the_remote_methods_alone(thing):
    assert isinstance(thing, Thing) and thing.remote_group == "two" and thing
    with pytest.raises(AttributeError, match="'private' cannot be read; its remote methods are"):
        thing.private()
    assert "Thing in the 2 workers of group two" in repr(thing)
    with pytest.raises(InvalidError, match="can only be sent to workers"):
        pickle.dumps(thing)


def test_an_object_that_nobody_has_any_more_is_forgotten(run, thing):
    before = thing.held()()
    made = Thing(remote_group="two")
    assert thing.held()()[0] == before[0] + 1
    del made
    assert thing.held()() == before


def test_the_placement_shows_what_lives_where(thing):
    text = infra.get_device_placement()
    assert "Thing" in text and "group two: 2 x cpu" in text


# ---- loops


def test_a_loop_lives_in_the_workers_and_ends(run):
    loop = Loop(2, remote_group="two")
    assert len(loop) == 2 and loop[3] == 30
    batches = [batch() for batch in loop]
    assert [[b[0], b[2]] for b in batches] == [["0.0", "1.0"], ["0.1", "1.1"]]
    assert len(list(loop)) == 2  # anew


def test_workers_whose_loops_end_at_different_times_are_told(run):
    loop = iter(Loop(1, uneven=True, remote_group="two"))
    next(loop)
    with pytest.raises(InternalError, match=r"has ended in some workers, but not in \[1\]"):
        next(loop)


# ---- lazy results


def test_a_lazy_result_is_called_iterated_measured_and_indexed(thing):
    lazy = thing.doubled([1, 2, 3])
    assert len(lazy) == 3 and list(lazy) == [2, 4, 6] and lazy[1] == 4 and lazy() is lazy()
    assert repr(lazy) == "[2, 4, 6]" and 4 in lazy and bool(lazy)
    assert lazy.index(6) == 2
    assert float(thing.mean(1.0)) == 1.5


def test_a_lazy_result_of_the_same_group_stays_in_its_worker(thing):
    """Each worker takes its own part: nothing is fetched, nothing sent."""
    lazy = thing.doubled([1, 2, 3])
    again = thing.doubled(lazy)
    assert not lazy._has_value and lazy._refs is None
    assert again() == [4, 8, 12]


def test_a_lazy_result_goes_to_another_group_from_worker_to_worker(thing):
    other = Thing(remote_group="three")
    lazy = thing.doubled([1, 2, 3])
    assert other.same(lazy)() == [[2, 4, 6]] * 2
    assert other.doubled(lazy)() == [4, 8, 12]
    assert not lazy._has_value
    lazy()
    assert other.doubled(lazy)() == [4, 8, 12]  # what the driver has


def test_a_lazy_result_may_stand_inside_of_arguments(thing):
    large = thing.large(1)
    assert thing.size(large)() == 2 * 2 << 20
    assert thing.same({"a": [thing.doubled([1, 2])]})()[1] == {"a": [[2, 4]]}


def test_a_result_that_nobody_has_any_more_is_forgotten(thing):
    before = thing.held()()
    for _ in range(5):
        thing.large(1)
    assert thing.held()()[0] <= before[0] + 1


def test_lazy_calls_return_before_they_are_done_and_sync_ones_do_not(thing):
    began = time.monotonic()
    lazy = thing.wait(0.5)
    assert time.monotonic() - began < 0.4
    lazy()
    assert time.monotonic() - began > 0.4
    with pytest.raises(InvalidError, match="thing: synced"):
        thing.synced()


# ---- errors


def test_an_error_keeps_its_class_and_says_where_the_driver_was(eager):
    with pytest.raises(NotFoundError, match="no such thing") as caught:
        eager.fail(NotFoundError("no such thing"))
    assert "rank 0 of group two, in the call of Thing.fail at test_calls.py:" in str(caught.value)
    with pytest.raises(ZeroDivisionError, match="by nothing"):
        eager.fail(ZeroDivisionError("by nothing"), rank=1)
    assert any("in fail" in note for note in caught.value.__notes__)


def test_an_error_that_nobody_waited_for_is_raised_by_the_next_call(thing):
    made = Thing(remote_group="two")
    made.fail(ConflictError("late"))
    time.sleep(0.3)
    with pytest.raises(ConflictError, match=r"late.*test_calls.py"):
        made.step()
    assert made.step() == 1


def test_what_was_sent_after_a_call_that_fails_is_not_done(thing):
    made = Thing(remote_group="two")
    made.wait(0.3)
    failing = made.fail(ConflictError("first"))
    counted = made.count_on_the_first()
    with pytest.raises(ConflictError, match="first"):
        failing()
    with pytest.raises(InternalError, match="was not done: a call before it failed"):
        counted()
    assert made.steps_of_all()() == [0, 0]


def test_the_error_of_a_call_before_is_told_where_one_worker_alone_has_skipped(run):
    made = Thing(remote_group="two")
    made.wait(0.5)
    failing, later = made.fail_beside(ConflictError("first"), 6), made.steps_of_all()
    began = time.monotonic()
    with pytest.raises(ConflictError, match="first"):
        later()  # the other worker is busy, and would be waited for
    assert time.monotonic() - began < 5
    with pytest.raises(ConflictError, match="first"):
        failing()
    assert made.step() == 1 and made.steps_of_all()() == [1, 1]


def test_the_next_call_raises_what_one_worker_has_told_while_another_is_busy(run):
    made = Thing(remote_group="two")
    made.fail_beside(ConflictError("early"), 6)
    time.sleep(0.5)
    began = time.monotonic()
    with pytest.raises(ConflictError, match="early"):
        made.step()
    assert time.monotonic() - began < 4
    assert made.step() == 1


def test_a_worker_that_fails_long_after_another_goes_on_with_it(run):
    made = Thing(remote_group="two")
    with pytest.raises(ConflictError, match="first"):
        made.fail_beside(ConflictError("first"), 3.5, ConflictError("second"))()
    time.sleep(3)
    assert made.step() == 1 and made.steps_of_all()() == [1, 1]


def test_a_workers_own_error_comes_before_what_another_was_told_of_it(run):
    made = Thing(remote_group="two")
    told = InvalidError("infra: rank 1, a batch: InvalidError: thing: bad row")
    with pytest.raises(InvalidError, match=r"^thing: bad row \(rank 1 of group two"):
        made.fail_beside(told, 0, InvalidError("thing: bad row"))()


def test_where_one_piece_cannot_be_sent_no_worker_begins(run):
    made = Thing(remote_group="two")
    gc.collect()  # what earlier tests have dropped is forgotten with the next call
    before = made.held()()
    other = Thing(remote_group="two")
    del other  # what the workers are to forget, they forget with the next call that is sent
    with pytest.raises(InvalidError, match=r"argument 1 of Thing.take cannot be sent to group two"):
        made.take([1, threading.Lock()])
    assert made.steps_of_all()() == [0, 0]
    assert made.held()() == before


def test_what_cannot_be_sent_is_named(eager):
    with pytest.raises(InvalidError, match=r"argument 1 of Thing.same cannot be sent to group two"):
        eager.same(threading.Lock())
    with pytest.raises(InvalidError, match=r"make of Thing cannot be sent to group two"):
        Thing(make=threading.Lock(), remote_group="two")
    with pytest.raises(InvalidError, match=r"what Thing\.unsendable takes or returns"):
        eager.unsendable()
    assert eager.step() == 1


def test_a_call_that_takes_longer_than_its_timeout_is_left(run):
    made = Thing(remote_group="three")
    with pytest.raises(TimeoutError, match=r"Thing.sleep of group three has not ended in 0.5 s"):
        made.sleep(1.5)()
    made._ray_get_timeout = 10
    made.sleep(0.6)()


def test_bad_placement_is_refused_before_anything_is_made(run):
    with pytest.raises(InvalidError, match="remote_group of a Thing is 'none', it must be a group"):
        Thing(remote_group="none")
    with pytest.raises(InvalidError, match=r"device_mesh of Thing has ranks .*, but group two has"):
        Thing(mesh=DeviceMesh.from_sizes(dp_size=4), remote_group="two")
    with pytest.raises(InvalidError, match="device_mesh of Thing is 3, it must be a DeviceMesh"):
        Thing(mesh=3, remote_group="two")


def test_a_sampler_in_two_workers_gives_the_samples_of_one_process(run, tiny_llama_dir):
    prompts = [{"input_ids": [5 + i, 6, 7]} for i in range(5)]
    params = {"max_tokens": 8, "temperature": 1.0, "logprobs": 1}
    told = []
    for place in ({}, {"remote_group": "two"}):
        sampler = TorchSampler(model_id=tiny_llama_dir, **place)
        told.append(
            [
                [
                    (r.sequences[0].tokens, r.sequences[0].logprobs)
                    for r in sampler.sample(prompts, params)
                ]
                for _ in range(2)
            ]
        )
    assert told[0] == told[1] and told[0][0] != told[0][1]


def test_a_loader_and_a_model_of_one_group_hand_over_their_batches(run, tiny_llama_dir):
    """The batches never leave the workers; the losses are those of one process."""
    told = []
    for place in ({}, {"remote_group": "two"}):
        model = TransformersModel(model_id=tiny_llama_dir, **place)
        model.add_adapter_to_model("default", LoraConfig(r=4))
        loader = DataLoader(dataset=rows_of_tokens, batch_size=4, **place)
        for batch in loader:
            model.forward_backward(inputs=batch)
            assert not place or not batch._has_value
            model.clip_grad_and_step()
        told.append(model.calculate_metric(is_training=True)["loss"])
    assert told[0] == told[1]


def test_a_row_that_is_bad_on_one_rank_alone_is_told_and_the_group_goes_on(run, tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir, remote_group="two")
    model.add_adapter_to_model("default", LoraConfig(r=4))
    rows = rows_of_tokens()
    began = time.monotonic()
    with pytest.raises(InvalidError, match="token"):
        model.forward_backward(inputs=[*rows[:3], {"input_ids": [9999, 1]}])()
    model.forward_backward(inputs=rows)()
    assert time.monotonic() - began < 20


def test_numbers_of_pairs_are_cut_with_their_rows(run, tiny_llama_dir):
    """The losses are those of one process; a pair that lies across ranks is refused."""
    told = []
    rows = rows_of_tokens()
    sums = {
        "ref_chosen_logps": [-1.0, -2.0, -3.0, -4.0],
        "ref_rejected_logps": torch.tensor([-2.0, -2.5, -1.0, -6.0]),
    }
    for place in ({}, {"remote_group": "two"}):
        model = TransformersModel(model_id=tiny_llama_dir, **place)
        model.add_adapter_to_model("default", LoraConfig(r=4))
        model.set_loss("DPOLoss", beta=0.1)
        told.append(float(model.forward_backward(inputs=rows, **sums)["loss"]))
    assert told[0] == told[1]
    with pytest.raises(
        InvalidError,
        match=r"ref_chosen_logps has an entry for each pair, .* of the 6 rows lie across the 2",
    ):
        model.forward_backward(inputs=rows[:6], **{name: given[:3] for name, given in sums.items()})


def test_a_loader_in_the_driver_makes_no_batch_with_fewer_rows_than_ranks(run):
    mesh = DeviceMesh.from_sizes(dp_size=2)
    loader = DataLoader(rows_of_tokens()[:5], batch_size=4, device_mesh=mesh)
    assert [len(batch) for batch in loader] == [4] and len(loader) == 1
    with pytest.raises(InvalidError, match="min_batch_size is 1, it must be at least the 2 data"):
        DataLoader(rows_of_tokens(), batch_size=4, min_batch_size=1, device_mesh=mesh)


def test_data_and_templates_live_in_workers_too(run, tiny_llama_dir, tmp_path):
    chats = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    ]
    file = tmp_path / "chats.jsonl"
    file.write_text((json.dumps(chats[0]) + "\n") * 6)
    dataset = Dataset(DatasetMeta(str(file)), remote_group="two")
    dataset.set_template("Template", model_id=tiny_llama_dir)
    dataset.encode()
    template = Template(tiny_llama_dir, remote_group="two")
    (encoded,) = template.batch_encode(chats)
    assert len(dataset) == 6 and list(dataset[5]["input_ids"]) == list(encoded["input_ids"])
    loader = DataLoader(dataset=dataset, batch_size=4, remote_group="two")
    assert [len(batch) for batch in loader] == [4, 2] and len(loader) == 2
    assert Dataset(DatasetMeta(str(file)))[0] == {**chats[0]}
    processor = InputProcessor(remote_group="two")
    assert processor(rows_of_tokens()) == rows_of_tokens()


def rows_of_tokens():
    return [{"input_ids": [5 + i, 6, 7 + i], "labels": [6, 7 + i, -100]} for i in range(8)]
