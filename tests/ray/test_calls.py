"""Calls to objects in workers: who gets which arguments, what becomes of the results."""

import collections
import json
import os
import pickle
import re
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from remote.things import Loop, OfTheFirst, Thing

import twinkle
from twinkle import (
    DataLoader,
    Dataset,
    DatasetMeta,
    DeviceGroup,
    DeviceMesh,
    InternalError,
    InvalidError,
    LoraConfig,
    NotAvailableError,
    Template,
    TorchSampler,
    TransformersModel,
)
from twinkle.errors import ConflictError
from twinkle.processor import InputProcessor
from twinkle.remote.collect import join

# ---- dispatch


def test_slice_cuts_lists_for_each_worker_and_gives_all_else_to_all(eager):
    assert eager.sliced([1, 2, 3], "x", more=(4, 5), d={"a": [1, 2]}) == [
        ([1, 2], ("x",), {"more": (4,), "d": {"a": [1, 2]}}),
        ([3], ("x",), {"more": (5,), "d": {"a": [1, 2]}}),
    ]


def test_slice_cuts_a_result_that_is_passed_on_as_its_value(run):
    made = Thing(remote_group="two")
    for lazy in (made.sum(1), made.one_dict()):  # an array, and a dict of lists
        of_value, of_lazy = made.sliced(lazy())(), made.sliced(lazy)()
        again = made.sliced([1, 2], d=lazy)()
        for (value, _, _), (same, _, _), (_, _, named) in zip(
            of_value, of_lazy, again, strict=True
        ):
            assert repr(value) == repr(same) == repr(named["d"]) == repr(lazy())


def test_any_name_may_be_an_arguments(eager):
    """Those that a proxy's own methods have, too."""
    named = {"name": "a", "how": "b", "klass": "c", "cls": "d"}
    assert eager.sliced([1, 2], **named)[0] == ([1], (), named)


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
    assert len(made.sliced_dp([1, 2, 3])) == 1  # with collect='none', too
    assert len(made.facts()) == 2  # where nothing is cut, of every worker


def test_a_batch_that_its_workers_cannot_share_is_refused_in_the_driver(monkeypatch):
    monkeypatch.setattr(twinkle.infra.current_run(), "cluster", object())
    with pytest.raises(
        InvalidError, match="batch_size is 3, it must be divisible by the 2 data ranks"
    ):
        DataLoader([{}] * 8, batch_size=3, device_mesh=DeviceMesh.from_sizes(dp_size=2))
    groups = [DeviceGroup(name, 2, "cpu") for name in ("model", "sampler")]
    monkeypatch.setattr(twinkle.infra.current_run(), "groups", groups)
    assert len(DataLoader([{}] * 8, batch_size=3)) == 3  # nobody knows of which
    monkeypatch.setattr(twinkle.infra.current_run(), "groups", groups[:1])
    with pytest.raises(
        InvalidError, match="batch_size is 3, it must be divisible by the 2 data ranks"
    ):
        DataLoader([{}] * 8, batch_size=3)
    assert [len(batch) for batch in DataLoader([{}] * 9, batch_size=4)] == [4, 4]


def test_all_gives_everybody_the_same_and_a_callable_what_it_says(eager):
    assert eager.same([1, 2]) == [[1, 2], [1, 2]]
    assert eager.own(["bb", "a"]) == "bb!"
    with pytest.raises(InvalidError, match=r"a dispatch of Thing returns is None, it must be a pa"):
        eager.dispatched_to_nobody()


def test_a_rank_that_would_get_nothing_is_refused(eager):
    with pytest.raises(InvalidError, match="Thing: argument 1 has 1 entries for 2 ranks"):
        eager.doubled([1])
    with pytest.raises(InvalidError, match=r"Thing: argument 1\['b'\] has 1 entries for 2 ranks"):
        eager.places({"a": [1, 2], "b": [1]})
    with pytest.raises(InvalidError, match="that is passed on has 1 entries for 2 ranks"):
        eager.places(lazily(eager.ones, 1))


def lazily(method, *arguments):
    """The result of an eager object's method when the object is lazy."""
    proxy = method.func.__self__
    proxy._lazy_collect = True
    try:
        return method(*arguments)
    finally:
        proxy._lazy_collect = False


def test_every_kind_of_mapping_is_cut(eager):
    counted = collections.Counter({"a": 5})
    grouped = collections.defaultdict(list, a=[1, 2])
    ordered = collections.OrderedDict(a=[1, 2])
    user = collections.UserDict(a=[1, 2])
    fixed = types.MappingProxyType({"a": [1, 2]})
    for given in (grouped, ordered, user):
        (first, _), (second, _) = eager.places(given)
        assert type(first) is type(given) and first["a"] == [1] and second["a"] == [2]
        assert given["a"] == [1, 2]  # the script's own stays as it is
    from twinkle.remote.dispatch import cut

    assert cut(counted, 0, 2) == counted and cut(fixed, 1, 2) == {"a": [2]}


# ---- execute and collect


def test_results_are_joined_as_the_word_says(eager):
    assert eager.doubled([1, 2, 3]) == [2, 4, 6]
    assert eager.mean(1.0) == eager.avg(1.0) == 1.5
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


def test_a_class_of_any_execute_has_an_object_in_every_worker(run):
    made = OfTheFirst(remote_group="two")
    assert made.ranks()() == [0, 1] and made.first()() == 0


def test_the_first_worker_gets_all_where_it_is_called_alone(eager):
    assert eager.whole([1, 2, 3]) == ([1, 2, 3], None)
    assert eager.whole([1]) == ([1], None)


def test_what_cannot_be_joined_is_refused(eager):
    with pytest.raises(InvalidError, match=r"what collect='mean' adds is 'a', it must be a number"):
        join("mean", ["a", 1])
    with pytest.raises(
        InvalidError, match=r"what collect='sum' adds is \[1\], it must be a number"
    ):
        join("sum", [[1], [2]])
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


def test_a_worker_makes_objects_of_its_own_group_alone(thing):
    assert thing.nested("two")() == thing.nested(None)() == 1
    with pytest.raises(
        NotAvailableError,
        match="remote_group of Thing is 'three', but it would be made in a worker of group two",
    ):
        thing.nested("three")()


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


def test_the_placement_shows_each_groups_objects_below_it(thing):
    made = Thing(mesh=DeviceMesh.from_sizes(dp_size=2, tp_size=1), remote_group="three")
    loop = Loop(1, remote_group="three")
    alone = Thing()
    text = twinkle.get_device_placement()
    assert {len(line) for line in text.splitlines()} == {80}
    two, three, one, here = re.split("├─*┤", text)
    assert "group two: 2 x cpu, ranks [0, 1]" in two and "mesh dp=2  " in two
    assert "Thing" in two and "Loop" not in two
    lines = [line.strip("│ ") for line in three.strip().splitlines()]
    assert lines[0] == "group three: 2 x cpu, ranks [0, 1]"
    at = lines.index("mesh dp=2, tp=1 (parallel: dp=2)")
    assert lines[at + 1] == "Thing"
    at = lines.index("mesh dp=2")
    assert "Loop" in lines[at + 1 :]
    assert "group one: 1 x cpu, ranks [0]" in one
    assert "in no group: this process" in here and "Thing" in here
    del made, loop, alone


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


def test_a_sampler_in_the_script_of_a_model_in_workers_is_told_where_to_be(run, tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir, remote_group="two")
    with pytest.raises(InvalidError, match="group two: give the sampler remote_group='two' too"):
        TorchSampler(model=model)


def test_sampling_parameters_are_the_same_for_all_prompts(run, tiny_llama_dir):
    """As many stop tokens as there are prompts are not the prompts'."""
    prompts = [{"input_ids": [5 + i, 6, 7]} for i in range(2)]
    told = []
    for place in ({}, {"remote_group": "two"}):
        sampler = TorchSampler(model_id=tiny_llama_dir, **place)
        free = sampler.sample(prompts, max_tokens=8, temperature=0)
        stops = [response.sequences[0].tokens[3] for response in free]
        stops = [stops[1], stops[0]]  # each is the other's
        params = {"max_tokens": 8, "temperature": 0, "stop": stops}
        for given in ({"sampling_params": params}, params):
            told.append([r.sequences[0].tokens for r in sampler.sample(prompts, **given)])
    assert told[0] == told[1] == told[2] == told[3]


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
    with pytest.raises(InvalidError, match="token"):
        model.forward_backward(inputs=[*rows[:3], {"input_ids": [9999, 1]}])()
    model.forward_backward(inputs=rows)()


def test_numbers_of_pairs_are_cut_with_their_rows(run, tiny_llama_dir):
    """The losses are those of one process, that of a pair that lies across ranks, too."""
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
        for count in (4, 3):
            given = {name: numbers[:count] for name, numbers in sums.items()}
            out = model.forward_backward(inputs=rows[: 2 * count], **given)
            model.forward(inputs=rows[: 2 * count])
            told.append([float(out["loss"]), model.calculate_loss(**given)])
    assert told[:2] == told[2:]


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
