"""Several processes against one: the same bits; and how they end when one of them is gone."""

import functools
import json
import os
import re
import signal

import pytest
from parallel.processes import (
    alone,
    endless,
    ends_by_interrupt,
    sha256,
    the_others_say,
    together,
    torchrun,
    wait_for_steps,
)

STEPS = 10


@pytest.fixture(scope="module")
def one(tiny_llama_dir, tmp_path_factory):
    """one(steps): (the folder of one process that has taken so many, what it has told)."""

    @functools.cache
    def ran(steps):
        out = tmp_path_factory.mktemp("one")
        return out, alone("script.py", tiny_llama_dir, out, steps)

    return ran


@pytest.mark.parametrize(("start", "size"), [(torchrun, 2), (together, 4)])
def test_every_process_has_the_bits_of_one(start, size, one, tiny_llama_dir, tmp_path):
    several = tmp_path / "several"
    one, told = one(STEPS)
    assert start(size, "script.py", tiny_llama_dir, several, STEPS) == [told] * size
    assert sha256(several / "last") == sha256(one / "last")


@pytest.mark.parametrize(
    "optimizer",
    [
        ("Muon", {"momentum": 0.9}),
        ("Muon", {"adjust_lr_fn": "match_rms_adamw"}),
        ("Lion", {"weight_decay": 0.1}),
        ("AdamW", {"loraplus_lr_ratio": 16.0}),
    ],
    ids=["Muon", "Muon as AdamW", "Lion", "LoRA+"],
)
def test_every_optimizer_has_the_bits_of_one_process(optimizer, tiny_llama_dir, tmp_path):
    more = {"OPTIMIZER": json.dumps(optimizer)}
    one = alone("script.py", tiny_llama_dir, tmp_path / "one", 6, **more)
    several = together(2, "script.py", tiny_llama_dir, tmp_path / "several", 6, **more)
    assert several == [one] * 2
    assert sha256(tmp_path / "several/last") == sha256(tmp_path / "one/last")


@pytest.mark.parametrize(
    "meshes", [((2, 1), (1, 1), (4, 1)), ((2, 2), (1, 1), (1, 4))], ids=["dp", "dp and fsdp"]
)
def test_what_one_mesh_has_saved_others_go_on_with(meshes, one, tiny_llama_dir, tmp_path):
    whole, told = one(9)
    # Three of nine steps each, from what the others have left: steps in the middle of a batch of
    # two among them.
    folder = None
    for start, (dp, fsdp) in zip((0, 3, 6), meshes, strict=True):
        size, out = dp * fsdp, tmp_path / f"from-{start}"
        arguments = [tiny_llama_dir, out, 3, *([start, folder] if folder else [])]
        for of_rank in together(size, "script.py", *arguments, FSDP=str(fsdp)):
            expected = told[start : start + 3]
            if of_rank[0][1] is None:  # a step in between, and the last one was another process's
                expected = [[expected[0][0], None], *expected[1:]]
            assert of_rank == expected
        parts = [f"training-{i + 1:05}-of-{size:05}.safetensors" for i in range(size)]
        files = sorted(file.name for file in (out / "last").glob("training*"))
        assert files == ([*parts, "training.index.json"] if size > 1 else ["training.safetensors"])
        folder = out
    assert sha256(folder / "last") == sha256(whole / "last")


@pytest.mark.parametrize("what", ["drop", "drop a cycle"])
def test_a_model_that_scripts_drop_ends_at_one_place_on_all_ranks(
    what, one, tiny_llama_dir, tmp_path
):
    _, told = one(STEPS)
    more = {"DO": f"all:{what}", "TWINKLE_DIST_TIMEOUT_SECONDS": "5"}
    assert together(2, "script.py", tiny_llama_dir, tmp_path, STEPS, **more) == [told] * 2


@pytest.mark.parametrize(
    ("gone", "fsdp"),
    [(0, 1), (2, 3), *(pytest.param(*both, marks=pytest.mark.soak) for both in ((0, 3), (2, 1)))],
)
def test_a_killed_rank_ends_every_other_rank_by_name(gone, fsdp, tiny_llama_dir, tmp_path):
    with endless(3, tiny_llama_dir, tmp_path, FSDP=str(fsdp)) as ranks:
        wait_for_steps(ranks, 2)
        ranks[gone].send_signal(signal.SIGKILL)
        the_others_say(ranks, gone, f"mesh: rank {gone} has gone: its process has ended")


@pytest.mark.parametrize("gone", [0, 1])
def test_a_killed_rank_is_told_though_a_fork_of_it_lives(gone, tiny_llama_dir, tmp_path):
    with endless(2, tiny_llama_dir, tmp_path, DO=f"{gone}:fork") as ranks:
        line = ranks[gone].wait_for("fork ")
        try:
            ranks[gone].send_signal(signal.SIGKILL)
            the_others_say(ranks, gone, f"mesh: rank {gone} has gone: its process has ended")
        finally:
            os.kill(int(line.split()[1]), signal.SIGKILL)  # fails where it has not lived until now


@pytest.mark.parametrize("gone", [0, 2])
def test_a_rank_that_is_killed_while_all_sample_ends_the_others(gone, tiny_llama_dir, tmp_path):
    with endless(3, tiny_llama_dir, tmp_path, DO="all:sample") as ranks:
        ranks[0].wait_for("samples\n")  # so all do
        ranks[gone].send_signal(signal.SIGKILL)
        the_others_say(
            ranks, gone, f"sample of .*: mesh: rank {gone} has gone: its process has ended"
        )


@pytest.mark.parametrize("gone", [0, 2])
def test_a_rank_that_is_interrupted_while_all_sample_ends_the_others(
    gone, tiny_llama_dir, tmp_path
):
    with endless(3, tiny_llama_dir, tmp_path, DO="all:sample") as ranks:
        ranks[0].wait_for("samples\n")  # so all do
        ranks[gone].send_signal(signal.SIGINT)
        the_others_say(
            ranks, gone, f"sample of .*rank {gone} ({'|'.join(ends_by_interrupt(gone))})"
        )


def test_a_busy_rank_is_waited_for_and_a_stopped_one_taken_for_lost(tiny_llama_dir, tmp_path):
    goes_on = tmp_path / "goes on"
    more = {"TWINKLE_DIST_TIMEOUT_SECONDS": "2", "DO": f"1:wait for {goes_on}"}
    with endless(3, tiny_llama_dir, tmp_path, **more) as ranks:
        for rank in ranks:  # all are told who is late
            rank.wait_for_error("infra: rank 1 has not come to exchange ")
        goes_on.touch()
        wait_for_steps(ranks, 5)
        ranks[1].send_signal(signal.SIGSTOP)
        text = "mesh: rank 1 has been silent for 2 s: its process is stopped"
        the_others_say(ranks, 1, text, seconds=30)
        late = r"infra: rank 1 has not come to exchange \d+, .*, where rank [02] has waited for "
        for rank in ranks:
            told = re.findall(late, rank.error())
            assert told and len(set(told)) == len(told), rank.error()[-2000:]


def of_whom_one_does(what, model, out):
    """Two ranks, the second of which does this."""
    return endless(2, model, out, TWINKLE_DIST_TIMEOUT_SECONDS="2", DO=f"1:{what}")


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("raise", "infra: rank 1 has ended with MemoryError: too many rewards"),
        (
            "starve",
            "forward_backward of 'adapter/default': mesh: rank 1 can't go on: the machine has no "
            "memory left for this: make it smaller$",
        ),
        ("leave", "rank 1 has ended its script, rank 0 waits for it at exchange"),
    ],
)
def test_what_ends_one_rank_is_told_on_the_others(what, text, tiny_llama_dir, tmp_path):
    with of_whom_one_does(what, tiny_llama_dir, tmp_path) as ranks:
        the_others_say(ranks, 1, text, seconds=60)
        _, error = ranks[1].end(30)  # and nothing stays behind
        assert "DefaultCPUAllocator" not in error, "torch's own text"


def test_ranks_exchange_no_more_once_one_lacks_the_memory_for_it(tiny_llama_dir, tmp_path):
    lacks = r"exchange (\d+), numbers: the machine has no memory left for this: make it smaller$"
    with endless(2, tiny_llama_dir, tmp_path, DO="all:gather") as ranks:
        for rank, begins in ((0, "mesh: rank 1 can't go on: "), (1, "")):
            status, error = ranks[rank].end(60)
            once = re.search(rf"^once: infra: exchange (\d+), numbers: {begins}(.*)", error, re.M)
            again = re.search(
                rf"InternalError: infra: exchange (\d+), numbers: {begins}{lacks}", error, re.M
            )
            assert status != 0 and once and again, error[-3000:]
            assert again[2] == once[1] and int(again[1]) == int(once[1]) + 1, error[-3000:]
            assert "no memory left" in once[2], once


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("save", "rank 0 has come with a batch, rank 1 with its save"),
        (
            "publish",
            "the ranks wait for each other: rank 0 at exchange .*, rank 1 at operation .*publish",
        ),
        ("calculate", "rank 0 has come with a batch, rank 1 with CompletionRewardMetric's results"),
    ],
)
def test_every_rank_is_told_where_scripts_part(what, text, tiny_llama_dir, tmp_path):
    with of_whom_one_does(what, tiny_llama_dir, tmp_path) as ranks:
        for rank in (0, 1):
            status, error = ranks[rank].end(60)
            assert status != 0 and re.search(text, error), error[-3000:]


def test_torchrun_ends_no_rank_before_it_has_said_who_was_killed(tiny_llama_dir, tmp_path):
    logs = tmp_path / "logs"  # a log for each rank: lines of several could mix in one
    apart = {"PET_LOG_DIR": str(logs), "PET_REDIRECTS": "3"}
    with pytest.raises(AssertionError):
        torchrun(2, "script.py", tiny_llama_dir, tmp_path, 1000, DO="1:kill", **apart)
    (log,) = logs.glob("*/attempt_0/0/stderr.log")
    says_once_who_was_killed(log.read_text(), 1)


def says_once_who_was_killed(error, rank):
    text = (
        rf"^twinkle.errors.InternalError: .*(operation|exchange) \d+, .*mesh: rank {rank} has gone"
    )
    assert len(re.findall(text, error, re.MULTILINE)) == 1, error


@pytest.mark.parametrize("gone", [0, 2])
def test_sigterm_as_of_torchrun_ends_no_rank_before_it_has_said_who_was_killed(
    gone, tiny_llama_dir, tmp_path
):
    with endless(3, tiny_llama_dir, tmp_path) as ranks:
        wait_for_steps(ranks, 2)
        ranks[gone].send_signal(signal.SIGKILL)
        for rank in ranks:
            rank.send_signal(signal.SIGTERM)
        for number in {0, 1, 2} - {gone}:
            says_once_who_was_killed(ranks[number].end(60)[1], gone)


def test_sigterm_ends_a_rank_by_its_name(tiny_llama_dir, tmp_path):
    with endless(3, tiny_llama_dir, tmp_path) as ranks:
        wait_for_steps(ranks, 2)
        ranks[1].send_signal(signal.SIGTERM)
        the_others_say(ranks, 1, "mesh: rank 1 was ended by SIGTERM")
        assert ranks[1].end(60)[0] == -signal.SIGTERM


def test_sigterm_ends_a_rank_whose_script_does_something_else(tiny_llama_dir, tmp_path):
    with endless(2, tiny_llama_dir, tmp_path, DO="0:sleep 60") as ranks:
        wait_for_steps(ranks, 2)
        ranks[0].wait_for("sleeps\n")
        ranks[1].send_signal(signal.SIGKILL)
        ranks[0].send_signal(signal.SIGTERM)
        status, error = ranks[0].end(30)  # before its sleep is over
        assert status == -signal.SIGTERM
        assert "twinkle: mesh: rank 1 has gone: its process has ended" in error, error


def test_torchruns_own_report_tells_the_error_of_each_rank(tiny_llama_dir, tmp_path):
    with pytest.raises(AssertionError) as failed:
        torchrun(2, "script.py", tiny_llama_dir, tmp_path, STEPS, DO="1:raise")
    cause = str(failed.value).rpartition("Root Cause")[2]
    assert re.search(r"traceback : .*MemoryError: too many rewards", cause), cause


# ---- before the first model


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("kill", "mesh: rank {0} has gone: its process has ended without a word"),
        ("exit", "mesh: rank {0} has ended its script"),
        ("raise", "infra: rank {0} has ended with MemoryError: too many rows"),
    ],
)
def test_a_rank_that_ends_before_its_first_model_is_told_at_once(
    gone, how, text, tiny_llama_dir, tmp_path
):
    with endless(2, tiny_llama_dir, tmp_path, DO=f"{gone}:early {how}") as ranks:
        ranks[gone].wait_for("ends\n")
        the_others_say(ranks, gone, text.format(gone))


def test_a_rank_that_never_comes_is_named_after_the_first_meeting(tiny_llama_dir, tmp_path):
    """Elsewhere it takes 30 s: rank 1 ends well, and nobody can know that it was to come."""
    more = {"TWINKLE_DIST_TIMEOUT_SECONDS": "2", "FIRST_MEETING_SECONDS": "2"}
    with endless(2, tiny_llama_dir, tmp_path, DO="1:at once exit", **more) as ranks:
        status, error = ranks[0].end(60)
        text = r"of a mesh of 2 ranks \[1\] have not come within 2 s: their processes"
        assert status != 0 and re.search(text, error), error[-2000:]
