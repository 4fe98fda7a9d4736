"""Starts on a state that a server with other names, limits and folders has left."""

import contextlib
import functools
import re
import resource
import shutil

import pytest

pytest.importorskip("tinker")
from service.message import ONES, message, train
from service.wire import Wire, wait_until


@pytest.fixture
def make(start, tiny_llama_dir, tmp_path):
    """make(folder, *options): a server, which is stopped at the end."""
    made = []

    def one(folder, *options):
        made.append(start(tiny_llama_dir, tmp_path / folder, "--log-level", "off", *options))
        return made[-1]

    yield one
    for server in made:
        server.stop()


def start_again(server, *more):
    """Killed, and with more options."""
    server.kill()
    if more and more[0] in server.command:
        at = server.command.index(more[0])
        del server.command[at : at + len(more)]
    server.command += more
    server.start_again()
    return Wire(server.url)


def a_batch(wire, run, seq_id, category="user"):
    return wire.result(train(wire, message(run, seq_id, weights=ONES)).json(), category)


def saved(wire, run, seq_id, name):
    return wire.ok("save_weights", {"model_id": run, "seq_id": seq_id, "path": name})


def create(wire, name):
    body = {"session_id": wire.session(), "model_seq_id": 0, "base_model": name}
    return wire.post("create_model", body | {"lora_config": {"rank": 4}})


def test_with_another_name_and_less_memory_it_goes_on_with_what_it_took(make):
    server = make("state")
    wire = Wire(server.url)
    run = wire.run()
    a_batch(wire, run, 1)
    waits = train(wire, message(run, 3, weights=ONES)).json()  # for 2, which has not come
    server.command[server.command.index("tiny")] = "mine"
    wire = start_again(server, "--max-queued-bytes", "2000")
    wire.result(wire.step(run, 2).json())
    assert isinstance(wire.result(waits), bytes)
    assert wire.post("get_info", {"model_id": run}).json()["model_name"] == "tiny"
    assert "base_model 'tiny' is not served here, only mine" in create(wire, "tiny").detail
    long = message(run, 4, tokens=[1, 2, 3] * 100, target_tokens=[2, 3, 1] * 100)
    assert "max_queued_bytes is 2000" in train(wire, long).detail
    wire = start_again(server, "--max-queued-bytes", "1000000")
    assert "was refused" in train(wire, long).detail
    assert create(wire, "mine").status == 200


def test_a_file_that_is_no_checkpoints_in_its_folder_stops_no_start(make, tmp_path):
    server = make("state")
    wire = Wire(server.url)
    run = wire.run()
    path = wire.result(saved(wire, run, 1, "a"))["path"]
    folder = tmp_path / "state/checkpoints" / run / "weights"
    (folder / "a/notes.txt").write_text("mine")
    (folder / "b").mkdir()
    (folder / "b/notes.txt").write_text("mine")
    refused = wire.result(saved(wire, run, 2, "b"), "server")
    assert f"tinker://{run}/weights/b holds 'notes.txt'" in refused["error"]
    shutil.rmtree(folder / "b")
    wire = start_again(server)
    assert not (folder / "b").exists()
    body = {"session_id": wire.session(), "model_seq_id": 0, "path": path, "optimizer": True}
    loaded = wire.result(wire.ok("load_weights", body))["model_id"]
    a_batch(wire, loaded, 1)
    a_batch(wire, run, 3)


def test_a_removed_checkpoint_loses_the_run_that_needs_it_and_no_other(make, tmp_path, capfd):
    server = make("state")
    wire = Wire(server.url)
    run = wire.run()
    path = wire.result(saved(wire, run, 1, "a"))["path"]
    body = {"session_id": wire.session(), "model_seq_id": 0, "path": path, "optimizer": True}
    loaded = wire.result(wire.ok("load_weights", body))["model_id"]
    a_batch(wire, loaded, 1)
    folder = tmp_path / "state/checkpoints" / run / "weights/a"
    folder.rename(tmp_path / "aside")
    wire = start_again(server)
    why = f"the run '{loaded}' is lost: the checkpoint in {folder}, with which it began, was"
    assert why in capfd.readouterr().err
    told = a_batch(wire, loaded, 2, "server")["error"]
    assert told.startswith("server: " + why.replace(str(folder), path))
    a_batch(wire, run, 2)
    (tmp_path / "aside").rename(folder)
    wire = start_again(server)
    assert isinstance(a_batch(wire, loaded, 3), bytes)


@contextlib.contextmanager
def no_room(server, num_bytes):
    """No file of the server may grow beyond that."""
    change = functools.partial(resource.prlimit, server.process.pid, resource.RLIMIT_FSIZE)
    before = change()
    change((num_bytes, before[1]))
    yield
    change(before)


def test_a_tenant_is_told_of_its_checkpoints_and_the_log_of_the_servers_files(
    start, tiny_llama_dir, tmp_path
):
    state = tmp_path / "state"
    with (tmp_path / "log").open("w") as log:
        server = start(tiny_llama_dir, state, "--log-level", "error", log=log)
        wire = Wire(server.url)
        run = wire.run()
        body = {"model_id": run, "seq_id": 1, "path": "a"}
        path = wire.result(wire.ok("save_weights_for_sampler", body))["path"]
        body = {"session_id": wire.session(), "sampling_session_seq_id": 0, "model_path": path}
        sampler = wire.ok("create_sampling_session", body)["sampling_session_id"]
        folder = state / "checkpoints" / run
        adapter = folder / "sampler_weights/a/adapter_model.safetensors"
        with no_room(server, adapter.stat().st_size // 2):  # the journal is shorter than that
            ack = saved(wire, run, 2, "c")
            full = wire.result(ack, "server")["error"]
        shutil.rmtree(folder / "sampler_weights/a")
        wire = start_again(server)
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 5, 9]}]}
        body = {"sampling_session_id": sampler, "seq_id": 0, "prompt": prompt}
        ack = wire.ok("asample", body | {"sampling_params": {"max_tokens": 2}})
        gone = wire.result(ack, "server")["error"]
        assert server.stop() == 0
    assert re.fullmatch(
        rf"io: cannot write more than \d+ bytes of tinker://{run}/weights/c: File too large; .*",
        full,
    )
    assert gone == (
        f"server: {path} cannot be read: its folder, or a file in it, is gone; "
        "the operator can put it back"
    )
    told = (tmp_path / "log").read_text()
    for real in (folder / "weights/.c.partial-", folder / "sampler_weights/a/"):
        assert re.search(rf" error \S+ failed: .*{re.escape(str(real))}", told), told


def test_a_state_without_its_journal_or_a_snapshot_is_refused_and_kept(
    make, twinkle, tmp_path, capfd
):
    state = tmp_path / "state"
    server = make("state", "--snapshot-seconds", "0")
    wire = Wire(server.url)
    run = wire.run()
    a_batch(wire, run, 1)
    wire.result(wire.step(run, 2).json())
    snapshot = state / "snapshots" / run / "2"
    record = f"{run}/2".encode()  # after the folder, which no start needs without it
    wait_until(lambda: any(record in f.read_bytes() for f in (state / "journal").glob("*.journal")))
    assert snapshot.exists()
    assert server.stop() == 0

    def expect_refused(why):
        server.launch()
        assert server.process.wait(60) == 1
        server.process.stdout.close()
        checked = twinkle(*server.command[server.command.index("serve") :], "--check")
        assert checked.returncode == 1
        for told in (capfd.readouterr().err, checked.stderr):
            assert why in told and "restore a backup" in told

    (state / "journal").rename(tmp_path / "journal")
    expect_refused(f"{state}/snapshots has runs, but the journal in {state}/journal holds nothing")
    assert snapshot.exists() and not (state / "journal").exists()
    (tmp_path / "journal").rename(state / "journal")
    snapshot.rename(tmp_path / "aside")
    expect_refused(
        f"the snapshot of the run '{run}' in {snapshot} cannot be read: No such file or directory"
    )
    (tmp_path / "aside").rename(snapshot)
    server.start_again()
    assert isinstance(a_batch(Wire(server.url), run, 3), bytes)


def test_a_start_logs_that_it_recovers_and_what_it_has_recovered(start, tiny_llama_dir, tmp_path):
    with (tmp_path / "log").open("w") as log:
        server = start(tiny_llama_dir, tmp_path / "state", log=log)
        wire = Wire(server.url)
        a_batch(wire, wire.run(), 1)
        server.kill()
        with max((tmp_path / "state/journal").glob("*.journal")).open("ab") as torn:
            torn.write(b"7 bytes")
        server.start_again()
        assert server.stop() == 0
    text = (tmp_path / "log").read_text()
    told = re.findall(
        r"info recovery begins: (\d+) bytes to read of (\S+)\n"
        r"(?:\S+ info recovery goes on: \d+ operations left\n)*"
        r"\S+ info recovery ends: (\d+) records in \d+\.\d s\n",
        text,
    )
    (no_bytes, journal, none), (num_bytes, again, some) = told
    assert (no_bytes, none, journal) == ("0", "0", again)
    assert journal == str(tmp_path / "state/journal")
    assert int(num_bytes) > 1000 and int(some) >= 4, "a session, a run, a batch and how they ended"
    cut = "warning recovery has cut off 7 bytes behind the journal's last whole record: after "
    assert text.count("has cut off") == text.count(cut) == 1


def test_what_was_trained_before_sigterm_is_not_trained_again(make):
    server = make("state")
    wire = Wire(server.url)
    run = wire.run()
    a_batch(wire, run, 1)
    wire.result(wire.step(run, 2).json())

    assert wire.metric("training_tokens_total") > 0
    assert server.stop() == 0
    server.start_again()
    wire = Wire(server.url)
    assert wire.metric("training_tokens_total") == 0
    assert isinstance(a_batch(wire, run, 3), bytes)


def test_sigterm_ends_a_start_at_once_and_nothing_is_lost(
    start, with_faults, tiny_llama_dir, tmp_path
):
    server = start(tiny_llama_dir, tmp_path / "state", command=with_faults)
    wire = Wire(server.url)
    run = wire.run()
    a_batch(wire, run, 1)
    server.kill()
    control = tmp_path / "disk"
    control.write_text("slow 1000")  # each file that is opened
    server.launch({"TWINKLE_FAULT_DISK": str(control)})

    def answers():
        try:
            return Wire(server.url).send("GET", "/healthz").status == 200
        except ConnectionError:
            return False

    wait_until(answers, 120)
    assert Wire(server.url).send("GET", "/readyz").status == 503
    server.process.terminate()
    assert server.process.wait(20) == 0
    assert server.process.stdout.read() == "twinkle ends\n", "it has not served"
    server.process.stdout.close()
    server.start_again()
    assert isinstance(a_batch(Wire(server.url), run, 2), bytes)
    assert server.stop() == 0


def open_promises(wire):
    lines = wire.send("GET", "/metrics").body.decode().splitlines()
    return int(next(line for line in lines if line.startswith("twinkle_promises_open")).split()[1])


def test_a_sample_without_a_seed_gets_the_same_tokens_where_a_kill_came_before_its_end(
    make, twinkle, tmp_path
):
    server = make("state")
    wire = Wire(server.url, timeout=60)
    body = {"session_id": wire.session(), "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler = wire.ok("create_sampling_session", body)["sampling_session_id"]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 5, 9]}]}

    def sample(seq_id):
        body = {"sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 192}
        params = {"max_tokens": 400, "stop": []}
        return wire.ok("asample", body | {"prompt": prompt, "sampling_params": params})

    first, second = sample(0), sample(1)
    told = twinkle("backup", tmp_path / "killed", "--state", tmp_path / "state")
    assert told.returncode == 0, told.stderr
    assert open_promises(wire) == 2, "they ended before the copy; make them longer"
    undisturbed = [wire.result(first), wire.result(second)]
    assert undisturbed[0] != undisturbed[1], "each has a chance of its own"
    # The state that a kill at that moment leaves.
    after = Wire(make("killed").url, timeout=60)
    assert [after.result(first), after.result(second)] == undisturbed


def another_processor():
    """Turns this one's bits into those of another."""
    torch = pytest.importorskip("torch")
    return "avx2" if torch.backends.cpu.get_cpu_capability() == "AVX512" else "default"


@pytest.mark.parametrize("other", ["another processor", "another precision"])
def test_a_state_of_other_arithmetic_is_refused_and_kept_until_the_operator_accepts_it(
    make, twinkle, tmp_path, capfd, monkeypatch, other
):
    server = make("state")
    wire = Wire(server.url)
    run = wire.run()
    a_batch(wire, run, 1)
    server.kill()
    ours = list(server.command)
    with monkeypatch.context() as patch:
        if other == "another processor":
            patch.setenv("ATEN_CPU_CAPABILITY", another_processor())
        else:
            server.command += ["--mixed-precision", "no"]
        journal = tmp_path / "state/journal"
        before = {file.name: file.read_bytes() for file in journal.glob("*.journal")}
        server.launch()
        assert server.process.wait(60) == 1
        checked = twinkle(*server.command[server.command.index("serve") :], "--check")
        assert checked.returncode == 1
        why = f"the state in {tmp_path}/state was computed with {{"
        for told in (capfd.readouterr().err, checked.stderr):
            assert why in told and "Accept that by --accept-other-arithmetic" in told
        assert {file.name: file.read_bytes() for file in journal.glob("*.journal")} == before
        theirs, server.command = server.command, ours
    server.start_again()  # as it was
    assert isinstance(a_batch(Wire(server.url), run, 2), bytes)
    server.kill()
    with monkeypatch.context() as patch:
        if other == "another processor":
            patch.setenv("ATEN_CPU_CAPABILITY", another_processor())
        server.command = [*theirs, "--accept-other-arithmetic"]
        server.start_again()
    assert isinstance(a_batch(Wire(server.url), run, 3), bytes)


def test_a_state_is_refused_over_other_weights_of_its_config_and_taken_over_a_copy(
    make, twinkle, tiny_llama_dir, tmp_path, capfd
):
    safetensors = pytest.importorskip("safetensors.torch")
    server = make("state")
    wire = Wire(server.url)
    run = wire.run()
    a_batch(wire, run, 1)
    assert server.stop() == 0
    at = server.command.index(tiny_llama_dir)
    copy, other = tmp_path / "copy", tmp_path / "other"
    for folder in (copy, other):
        shutil.copytree(tiny_llama_dir, folder)
    tensors = safetensors.load_file(other / "model.safetensors")
    for name in tensors:  # as an adapter that was merged
        if "q_proj" in name:
            tensors[name] *= 2
    safetensors.save_file(tensors, other / "model.safetensors", {"format": "pt"})

    def checked():
        return twinkle(*server.command[server.command.index("serve") :], "--check")

    server.command[at] = str(other)
    server.launch()
    assert server.process.wait(60) == 1
    server.process.stdout.close()
    refused = checked()
    assert refused.returncode == 1
    why = (
        f"the state in {tmp_path}/state is of the model in {tiny_llama_dir}, and the one in "
        f"{other} has other weights with the same config: serve the weights that it is of, or name "
        "another --state"
    )
    for told in (capfd.readouterr().err, refused.stderr):
        assert why in told

    server.command[at] = str(copy)
    taken = checked()
    assert taken.returncode == 0, taken.stderr
    server.start_again()
    assert isinstance(a_batch(Wire(server.url), run, 2), bytes)
