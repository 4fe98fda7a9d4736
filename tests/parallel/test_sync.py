"""Samplers in other processes than the model: after a sync they sample its bits."""

import json
import signal
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from parallel.forks import Process
from parallel.processes import free_port


@contextmanager
def begun(senders, receivers, model, kind, steps=3, **more):
    """`senders` ranks of one model, and `receivers` samplers, each a process that is ready to meet
    the others. model: the folder of both, or of each role."""
    size, port = senders + receivers, str(free_port())
    with ExitStack() as ends:
        processes = []
        for rank in range(size):
            role = "model" if rank < senders else "sampler"
            own = dict(more)
            if role == "model" and senders > 1:
                own |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(senders)}
                own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            directory = model[role] if isinstance(model, dict) else model
            arguments = (role, directory, kind, rank, size, senders, steps)
            processes.append(Process("sync_script.py", *arguments, **own))
            ends.callback(processes[-1].stop)
        for process in processes:
            process.wait_for("ready\n")
        yield processes


@contextmanager
def synced(*arguments, **more):
    """The same, which then meet and begin with their steps."""
    with begun(*arguments, **more) as processes:
        address = where(processes)
        for process in processes[1:]:
            process.say(address)
        yield processes


def where(processes):
    """The address at which the first one waits for the others from now on."""
    processes[0].say("")
    return processes[0].wait_for(":").strip()


def wait_for_steps(processes, count):
    for process in processes:
        process.wait_for(f"step {count}\n")


def results_of(processes):
    """The JSON in the last line of each process. All end well."""
    for process in processes:
        status, error = process.end(200)
        assert status == 0, error[-4000:]
    return [json.loads(process.rest().splitlines()[-1]) for process in processes]


@pytest.mark.parametrize("kind", ["adapter", "full"])
@pytest.mark.parametrize(
    ("senders", "receivers"), [(1, 2), (2, 1), pytest.param(1, 1, marks=pytest.mark.soak)]
)
def test_samplers_in_other_processes_sample_the_models_bits(
    kind, senders, receivers, tiny_llama_dir
):
    with synced(senders, receivers, tiny_llama_dir, kind) as ranks:
        results = results_of(ranks)
    told = results[0]["told"]
    assert told[0] != told[1] != told[2]
    assert all(result["told"] == told for result in results)
    for step in range(3):
        received = [result["sent"][step] for result in results[senders:]]
        sent = [result["sent"][step] for result in results[:senders]]
        assert sum(s["num_bytes"] for s in sent) == sum(r["num_bytes"] for r in received) > 0
        assert all(r["has_base"] is (kind == "full") for r in sent + received)


def test_ranks_that_share_the_base_send_it_in_parts(tiny_llama_dir, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(tiny_llama_dir)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)  # other weights
    with synced(2, 1, {"model": tiny_llama_dir, "sampler": tmp_path}, "parts") as ranks:
        results = results_of(ranks)
    told = results[0]["told"]
    assert told[0] != told[1] != told[2]
    assert all(result["told"] == told for result in results)
    for step in range(3):
        of_model, received = [r["sent"][step] for r in results[:2]], results[2]["sent"][step]
        assert all(sent["has_base"] is (step == 0) for sent in [*of_model, received])
        sent = [each["num_bytes"] for each in of_model]
        assert sum(sent) == received["num_bytes"] and 0.4 < sent[0] / sum(sent) < 0.6


def the_others_name(ranks, gone, why, seconds=60):
    """Each rank but `gone` ends with an InternalError of its part of the sync, and this text."""
    for rank in set(range(len(ranks))) - {gone}:
        status, error = ranks[rank].end(seconds)
        called = "send_weights" if rank == 0 else "receive_weights"
        text = f"InternalError: checkpoint_engine: {called} of rank {rank} of 3: mesh: rank {gone} "
        assert status != 0 and text + why in error, error[-2000:]


@pytest.mark.parametrize("gone", [0, 1])
def test_a_killed_rank_ends_the_syncs_of_the_others_by_name(gone, tiny_llama_dir):
    with synced(1, 2, tiny_llama_dir, "adapter", steps=100_000) as ranks:
        wait_for_steps(ranks, 1)
        ranks[gone].send_signal(signal.SIGKILL)
        the_others_name(ranks, gone, "has gone: its process has ended", seconds=30)


def test_a_rank_that_is_stopped_ends_the_syncs_of_the_others_by_name(tiny_llama_dir):
    more = {"steps": 100_000, "TWINKLE_DIST_TIMEOUT_SECONDS": "2"}
    with synced(1, 2, tiny_llama_dir, "adapter", **more) as ranks:
        wait_for_steps(ranks, 1)
        ranks[1].send_signal(signal.SIGSTOP)
        the_others_name(ranks, 1, "has been silent for 2 s: its process is stopped")


# Thousands of messages in a sync.
SMALL_BUCKETS = {"BUCKET_BYTES": "128"}


def system_calls(process):
    """How often it has read or written: once or more for each message."""
    counts = Path(f"/proc/{process.pid}/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in counts if line.startswith("sysc"))


def stop_in_transfer(ranks, rank):
    """After the first step, in the middle of a sync's messages: a step without them makes a few
    calls."""
    wait_for_steps(ranks, 0)
    process = ranks[rank]
    first = system_calls(process)
    while system_calls(process) < first + 1000:
        assert process.status() is None, process.error()[-4000:]
        time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)


def test_a_rank_that_is_stopped_in_a_transfer_is_named_by_those_that_wait_for_its_bytes(
    tiny_llama_dir,
):
    more = {"steps": 100_000, "TWINKLE_DIST_TIMEOUT_SECONDS": "2", **SMALL_BUCKETS}
    with synced(1, 2, tiny_llama_dir, "full", **more) as ranks:
        stop_in_transfer(ranks, 1)
        the_others_name(ranks, 1, "has been silent for 2 s: its process is stopped")


def test_a_rank_that_is_busy_in_a_transfer_for_longer_than_sockets_wait_is_waited_for(
    tiny_llama_dir,
):
    more = {"steps": 2, "SOCKETS_TIMEOUT": "2", **SMALL_BUCKETS}
    with synced(1, 1, tiny_llama_dir, "full", **more) as ranks:
        stop_in_transfer(ranks, 0)
        time.sleep(3)  # longer than its sockets would wait
        ranks[0].send_signal(signal.SIGCONT)
        model, sampler = results_of(ranks)
    assert model["told"] == sampler["told"]


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_comes_late_is_waited_for_and_warned_of_once(late, tiny_llama_dir):
    more = {"COMES_WHEN_TOLD": str(late), "TWINKLE_DIST_TIMEOUT_SECONDS": "2"}
    with synced(1, 1, tiny_llama_dir, "adapter", **more) as ranks:
        place = f"a sync of weights, where rank {1 - late} has waited for 2 s"
        text = f"infra: rank {late} has not come to {place}"
        ranks[1 - late].wait_for_error(text)
        ranks[late].say("come")
        model, sampler = results_of(ranks)
        assert [rank.error().count(text) for rank in ranks] == [late, 1 - late]
    assert model["told"] == sampler["told"]


def test_a_sampler_whose_script_ends_well_is_not_told_as_killed(tiny_llama_dir):
    with synced(1, 1, tiny_llama_dir, "adapter", LEAVES="1") as ranks:
        _, error = ranks[0].end(60)
        assert "InternalError: " in error and "mesh: rank 1 has ended its script" in error, error
        assert "killed" not in error


def test_an_interrupt_ends_the_sync_of_a_rank_that_waits_and_those_of_the_others(tiny_llama_dir):
    more = {"COMES_WHEN_TOLD": "0", "TWINKLE_DIST_TIMEOUT_SECONDS": "2"}
    with synced(1, 1, tiny_llama_dir, "adapter", **more) as ranks:
        ranks[1].wait_for_error("infra: rank 0 has not come to a sync of weights")
        ranks[1].send_signal(signal.SIGINT)
        _, error = ranks[1].end(60)  # the other has not come
        assert "KeyboardInterrupt" in error, error[-2000:]
        ranks[0].say("come")
        _, error = ranks[0].end(60)
        assert "rank 1 can't go on: its script was interrupted" in error, error[-2000:]


def test_a_rank_that_does_not_come_is_named_after_the_timeout(tiny_llama_dir):
    with begun(1, 1, tiny_llama_dir, "adapter", TWINKLE_DIST_TIMEOUT_SECONDS="2") as ranks:
        where(ranks)
        _, error = ranks[0].end(100)
        assert "rank 0 of 2 could not meet the others" in error, error[-2000:]
        assert "rank 1 of the group has not come" in error, error[-2000:]
