"""The server is killed while clients of the real SDK work: they notice nothing, nothing is lost."""

import errno
import functools
import hashlib
import itertools
import json
import os
import random
import re
import resource
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

tinker = pytest.importorskip("tinker")
from service.message import ONES, message, train  # noqa: E402
from service.wire import Wire  # noqa: E402
from tinker import types  # noqa: E402

ROOT = Path(__file__).parents[2]
ADAM = types.AdamParams(learning_rate=1e-2)
STEPS = 20

# Points at which tests/service/faults.cpp can end the program: before and after each.
POINTS = (
    "journal write", "apply", "acknowledgement", "outcome", "rename", "state rename", "truncation"
)  # fmt: skip
SIDES = ("before", "after")
CLOCK = "wall clock"
# A round kills at each point once: before it in odd rounds, after it in even ones.
ROUND = len(POINTS) + 1
LEAST = 4  # at each point
KILLS = LEAST * ROUND
SOAK_KILLS = 200
# So that records give way to a state many times.
JOURNAL_BYTES = 6000
LIMIT_SECONDS = 120  # for one kill: clients wait for up to 30 s before they try again


def datum(seed):
    tokens = [1, *((i * i + 7 * seed) % 200 + 3 for i in range(12))]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


def work(service, seed, goes_on):
    """Trains, samples and saves; what came of it: texts that a disturbed run must repeat."""
    client = service.create_lora_training_client("tiny", rank=4, seed=seed)
    said = []
    for step in itertools.count():
        if not goes_on(seed, step):
            break
        passed = client.forward_backward([datum(seed), datum(seed + 1)], "cross_entropy")
        stepped = client.optim_step(ADAM)
        said.append(repr(passed.result().metrics["loss:sum"]))
        said.append(repr(stepped.result().metrics["unclipped_grad_l2:mean"]))
        if step % 7 == 6:
            sampler = client.save_weights_and_get_sampling_client()
            params = types.SamplingParams(max_tokens=6, seed=step, temperature=1.0)
            prompt = types.ModelInput.from_ints([1, 5, 9])
            drawn = sampler.sample(prompt, num_samples=2, sampling_params=params).result()
            said.append(repr([(s.tokens, s.logprobs) for s in drawn.sequences]))
    said.append(client.save_state("end").result().path.rpartition("/")[2])
    return step, said


def adapters(state):
    """The sha256 of the saved adapters, in any order of runs."""
    files = sorted(state.glob("checkpoints/*/weights/end/adapter_model.safetensors"))
    return sorted(hashlib.sha256(f.read_bytes()).hexdigest() for f in files)


SEEDS = range(1, 5)


def as_many_as(steps):
    return lambda _, step: step < steps


@contextmanager
def four_clients(server, goes_on, keys=tuple(f"tml-{seed}" for seed in SEEDS)):
    """Four threads that work; a Future of their numbers of steps and of what they said."""
    with ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(1) as waiting:
        pairs = zip(keys, SEEDS, strict=True)
        each = [pool.submit(work, server.client(key), s, goes_on) for key, s in pairs]
        yield waiting.submit(lambda: zip(*[one.result() for one in each], strict=True))


def run_undisturbed(start, model, state, goes_on):
    server = start(model, state)
    with four_clients(server, goes_on) as result:
        _, said = result.result(600)
    assert server.stop() == 0
    return said, adapters(state)


@pytest.fixture(scope="module")
def undisturbed(start, tiny_llama_dir, tmp_path_factory):
    state = tmp_path_factory.mktemp("undisturbed")
    return run_undisturbed(start, tiny_llama_dir, state, as_many_as(STEPS))


def plan(count):
    """(point, its side, the how many-th time or after how many seconds), each point as often."""
    draw = random.Random(1)
    sides = itertools.cycle(SIDES)
    rounds = ((point, side) for side in sides for point in (*POINTS, CLOCK))
    for point, side in itertools.islice(rounds, count):
        if point == CLOCK:
            yield CLOCK, "", draw.uniform(0.1, 1.5)  # the start takes a part of it
        elif point.endswith("rename") or point == "truncation":
            yield point, side, draw.randint(1, 2)
        else:
            yield point, side, draw.randint(1, 8)


def kill_at(server, point, side, when, result):
    """Starts the server, which is killed there: while it starts, or while it serves."""
    server.launch({} if point == CLOCK else {"TWINKLE_FAULT": f"{side} {point}:{when}"})
    end = time.monotonic() + (when if point == CLOCK else LIMIT_SECONDS)
    while server.process.poll() is None and time.monotonic() < end:
        assert not result.done(), f"the clients ended before {point}: {result.exception()}"
        time.sleep(0.01)
    if point == CLOCK:
        server.process.kill()
    assert server.process.wait(60) == -signal.SIGKILL, (side, point, when)
    server.process.stdout.close()


def run_killed(server, count):
    """Results and output of clients that worked until the server had been killed so often have done
    and said, and how often it was at which point and side."""
    killed = Counter()
    is_over = Event()

    def goes_on(_, step):
        return step < STEPS or not is_over.is_set()

    with four_clients(server, goes_on) as result:
        server.kill()  # it has only just begun
        try:
            for point, side, when in plan(count):
                kill_at(server, point, side, when, result)
                killed[f"{side} {point}".strip()] += 1
        finally:  # clients whose server is gone would try for minutes
            is_over.set()
            server.kill()
            server.start_again()
            print(f"{killed.total()} kills: {dict(killed)}")  # by point and side
        steps, said = result.result(600)
    assert server.stop() == 0
    return dict(zip(SEEDS, steps, strict=True)), said, killed


def check_counts(killed, least):
    """Kills at each point, about as often before it as after it; and by the clock."""
    for point in POINTS:
        before, after = (killed[f"{side} {point}"] for side in SIDES)
        assert before + after >= least and min(before, after) >= least // 2, (point, killed)
    assert killed[CLOCK] >= least, killed


def check_kills(start, with_faults, model, folder, kills, seconds):
    """Clients go on until there were so many, and then do what they did undisturbed."""
    options = ["--snapshot-seconds", seconds, "--log-level", "off"]
    options += ["--journal-bytes", str(JOURNAL_BYTES)]
    server = start(model, folder / "killed", *options, command=with_faults)
    steps, said, killed = run_killed(server, kills)
    check_counts(killed, kills // ROUND)
    assert journal_bytes(folder / "killed") < 20 * JOURNAL_BYTES
    undisturbed = run_undisturbed(
        start, model, folder / "undisturbed", lambda seed, step: step < steps[seed]
    )
    assert (said, adapters(folder / "killed")) == undisturbed


def test_four_clients_see_no_error_and_their_adapters_are_those_of_an_undisturbed_run(
    start, with_faults, tiny_llama_dir, tmp_path, capfd
):
    with capfd.disabled():
        check_kills(start, with_faults, tiny_llama_dir, tmp_path, KILLS, "0")


@pytest.mark.soak
def test_two_hundred_kills(start, with_faults, tiny_llama_dir, tmp_path, capfd):
    """TWINKLE_SOAK_KILLS says how many."""
    kills = int(os.environ.get("TWINKLE_SOAK_KILLS", SOAK_KILLS))
    with capfd.disabled():
        check_kills(start, with_faults, tiny_llama_dir, tmp_path, kills, "0.2")


def test_every_fault_point_of_the_sources_is_one_that_kills(tracked):
    texts = [(ROOT / path).read_text() for path in tracked("twinkle/*.cpp", "twinkle/*.h")]
    named = re.findall(r'\bfault\("([^"]+)"\);', "".join(texts))
    points = {f"{side} {point}" for point in POINTS for side in SIDES}
    # fault_test.cpp's, one at which engine_test holds a save, one of a backup, and one that
    # truncation_test counts, between two parts of a state that takes no one's place yet.
    others = {"before this", "after this", "before a save's files", "before a segment's copy"}
    others.add("before a state's sync")
    assert points <= set(named) <= points | others


def test_the_program_that_is_installed_has_no_faults(with_faults):
    from twinkle import program

    assert b"TWINKLE_FAULT" in with_faults[0].read_bytes()
    assert b"TWINKLE_FAULT" not in program.path().read_bytes()


def asked(server, path, body=None, key="tml-probe"):
    """The status of an answer, its text, and how many seconds it took."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"x-api-key": key, "content-type": "application/json"}
    begun = time.monotonic()
    try:
        with urlopen(Request(f"{server.url}{path}", data, headers), timeout=60) as answer:
            return answer.status, answer.read().decode(), time.monotonic() - begun
    except HTTPError as answer:
        return answer.code, answer.read().decode(), time.monotonic() - begun


def wait_until(is_so):
    end = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def journal_bytes(state):
    return sum(path.stat().st_size for path in (state / "journal").glob("*.journal"))


def answers_a_new_session(server):
    return asked(server, "/api/v1/create_session", {})[0]


@contextmanager
def full(server, state, _):
    """No file of the server may grow."""
    change = functools.partial(resource.prlimit, server.process.pid, resource.RLIMIT_FSIZE)
    before = change()
    change((journal_bytes(state) // 2, before[1]))
    yield errno.EFBIG
    change(before)


@contextmanager
def read_only(_server, _state, control):
    control.write_text(f"refuse {errno.EROFS}")
    yield errno.EROFS
    control.unlink()


@pytest.mark.parametrize("refusing", [full, read_only])
def test_a_disk_that_refuses_is_503_until_it_heals_and_nothing_is_lost(
    refusing, undisturbed, start, with_faults, tiny_llama_dir, tmp_path
):
    control, state, log = tmp_path / "disk", tmp_path / "state", tmp_path / "log"
    variables = {"TWINKLE_FAULT_DISK": str(control)}
    server = start(tiny_llama_dir, state, command=with_faults, log=log.open("w"))
    server.kill()
    server.start_again(variables)
    with four_clients(server, as_many_as(STEPS)) as result:
        wait_until(lambda: journal_bytes(state) > 20_000)  # they are at work
        with refusing(server, state, control) as error:
            wait_until(lambda: answers_a_new_session(server) == 503)
            time.sleep(1.5)  # the journal tries again each second
            status, text, _ = asked(server, "/api/v1/create_session", {})
            assert status == 503 and text == (
                '{"detail":"server: the disk refuses what is to be journalled; come again"}'
            )
            said_why = f"cannot (write to|open|sync) .*: {os.strerror(error)}; free space there"
            assert re.search(f"the journal refuses records.*{said_why}", log.read_text())
            assert asked(server, "/api/v1/healthz")[0] == 200
            assert asked(server, "/readyz")[:2] == (
                503, '{"detail":"server: the disk refuses what is to be journalled"}',
            )  # fmt: skip
            assert "\ntwinkle_journal_refused 1\n" in asked(server, "/metrics")[1]
            assert not result.done()
        wait_until(lambda: answers_a_new_session(server) == 200)
        assert asked(server, "/readyz")[0] == 200
        assert "\ntwinkle_journal_refused 0\n" in asked(server, "/metrics")[1]
        assert "the journal takes records again" in log.read_text()
        _, said = result.result(600)
    server.kill()
    server.start_again()  # it compares recomputed results with sent ones
    assert server.stop() == 0
    assert (said, adapters(state)) == undisturbed


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_refuses_the_states_file_alone_holds_nobody_up_and_nothing_is_lost(
    refusal, undisturbed, start, with_faults, tiny_llama_dir, tmp_path
):
    control, state = tmp_path / "disk", tmp_path / "state"
    variables = {"TWINKLE_FAULT_DISK": str(control)}
    options = ["--journal-bytes", str(JOURNAL_BYTES)]
    server = start(tiny_llama_dir, state, *options, command=with_faults)
    server.kill()
    control.write_text(f"refuse-state {refusal}")
    server.start_again(variables)

    def is_counted(name):
        assert answers_a_new_session(server) == 200  # a record
        return Wire(server.url).metric(name) > 0

    with four_clients(server, as_many_as(STEPS)) as result:
        for _ in range(2):
            wait_until(lambda: is_counted("states_given_up_total"))
            assert Wire(server.url).metric("states_taken_total") == 0
            server.kill()
            server.start_again(variables)
        control.unlink()
        wait_until(lambda: is_counted("states_taken_total"))
        _, said = result.result(600)
    assert server.stop() == 0
    assert (said, adapters(state)) == undisturbed


def saved(server, key):
    """Two checkpoints of a run that has used four numbers: its own, and a sampler's."""
    client = server.client(key).create_lora_training_client("tiny", rank=4, seed=9)
    client.forward_backward([datum(9)], "cross_entropy").result()
    client.optim_step(ADAM).result()
    weights = client.save_state("first").result().path
    return weights, client.save_weights_for_sampler("first").result().path


def test_a_slow_disk_delays_acknowledgements_and_nothing_else(
    undisturbed, start, with_faults, tiny_llama_dir, tmp_path, twinkle
):
    control, state = tmp_path / "disk", tmp_path / "state"

    def key(*arguments):
        return twinkle("keys", "create", "--state", state, *arguments).stdout.strip()

    probe = key("--tenant", "probe", *(f"--scope={s}" for s in ("train", "sample", "metrics")))
    keys = [key("--tenant", f"t{seed}") for seed in SEEDS]
    options = ["--snapshot-seconds", "0", "--journal-bytes", str(JOURNAL_BYTES)]
    server = start(tiny_llama_dir, state, *options, command=with_faults)
    server.kill()
    server.start_again({"TWINKLE_FAULT_DISK": str(control)})
    weights, adapter = saved(server, probe)
    run = weights.split("/")[2]
    session = json.loads(asked(server, "/api/v1/create_session", {}, probe)[1])["session_id"]
    of_session = {"session_id": session}
    model = of_session | {"base_model": "tiny", "lora_config": {"rank": 4}}
    sampler = of_session | {"sampling_session_seq_id": 0, "base_model": "tiny"}
    on_disk = [
        ("/api/v1/create_session", {}),
        ("/api/v1/create_model", model | {"model_seq_id": 0}),
        ("/api/v1/create_sampling_session", sampler),
        (
            "/api/v1/create_sampling_session",
            of_session | {"sampling_session_seq_id": 1, "model_path": adapter},
        ),
        ("/api/v1/load_weights", of_session | {"model_seq_id": 1, "path": weights}),
        ("/api/v1/save_weights", {"model_id": run, "seq_id": 5, "path": "second"}),
        ("/hf/tiny/resolve/main/tokenizer.json", None),
    ]
    in_memory = {
        "/api/v1/healthz": None, "/readyz": None, "/metrics": None, "/api/v1/usage": None,
        "/api/v1/session_heartbeat": of_session,
        "/api/v1/get_server_capabilities": None,
    }  # fmt: skip
    with four_clients(server, as_many_as(STEPS), keys) as result, ThreadPoolExecutor() as pool:
        wait_until(lambda: len(list(state.glob("snapshots/*/*"))) > len(keys))  # they are at work
        control.write_text("slow 2000")
        try:
            slow = [pool.submit(asked, server, *request, probe) for request in on_disk]
            rounds = 0  # one for several calls of the disk, if they waited for it
            while not all(one.done() for one in slow):
                for request in in_memory.items():
                    assert asked(server, *request, probe)[0] == 200, request
                rounds += 1
                time.sleep(0.1)
            assert rounds > len(on_disk)
            for one in slow:
                status, text, seconds = one.result()
                assert status == 200 and seconds > 2, text
        finally:  # clients would go on for an hour
            control.write_text("slow 2")
        _, said = result.result(600)
    assert server.stop() == 0
    assert (said, adapters(state)) == undisturbed


def test_the_engine_goes_on_beside_a_slow_journal(start, with_faults, tiny_llama_dir, tmp_path):
    count, control = 8, tmp_path / "disk"
    options = ["--token-budget", "3"]  # so that each request is a batch of its own
    server = start(tiny_llama_dir, tmp_path / "state", *options, command=with_faults)
    server.kill()
    server.start_again({"TWINKLE_FAULT_DISK": str(control)})
    requests = [message(Wire(server.url).run(), 1, weights=ONES) for _ in range(count)]
    before = Wire(server.url).metric("training_tokens_total")
    with ThreadPoolExecutor(count) as pool:
        control.write_text("slow 1000")  # a record takes two calls, and those meanwhile wait
        try:
            acks = list(pool.map(lambda one: train(Wire(server.url), one).json(), requests))
            wait_until(
                lambda: Wire(server.url).metric("training_tokens_total") == before + 3 * count
            )
            # All that was accepted is done, and of hardly any has the journal the end.
            assert Wire(server.url).metric("promises_open") > count // 2
        finally:
            control.unlink()
        wire = Wire(server.url)
        assert all(isinstance(wire.result(ack), bytes) for ack in acks)
    assert server.stop() == 0


def test_a_run_whose_weights_no_forward_can_use_holds_up_no_state_and_stays_as_it_is(
    start, tiny_llama_dir, tmp_path
):
    server = start(tiny_llama_dir, tmp_path, "--journal-bytes", str(JOURNAL_BYTES))
    client = server.client().create_lora_training_client("tiny", rank=4, seed=1)
    client.forward_backward([datum(1)], "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=1e30)).result()

    def refused():
        with pytest.raises(tinker.RequestFailedError, match="have no finite products"):
            client.save_state("end").result()

    refused()
    taken = Wire(server.url).metric("states_taken_total")

    def is_taken():
        assert answers_a_new_session(server) == 200  # a record
        return Wire(server.url).metric("states_taken_total") > taken + 1

    wait_until(is_taken)
    assert Wire(server.url).metric("states_given_up_total") == 0
    server.kill()
    server.start_again()
    refused()
    assert server.stop() == 0


def test_a_run_that_silence_parked_comes_back_bit_for_bit_and_a_kill_loses_none(
    start, tiny_llama_dir, tmp_path
):
    def trained(state, rest, *options):
        server = start(tiny_llama_dir, state, *options)
        client = server.client().create_lora_training_client("tiny", rank=4, seed=1)
        said = []
        for step in range(3):
            passed = client.forward_backward([datum(1)], "cross_entropy").result()
            said.append(passed.metrics["loss:sum"])
            rest(server, step)
            client.optim_step(ADAM).result()
            rest(server, step)
        client.save_state("end").result()
        assert server.stop() == 0
        return said, adapters(state)

    def until_parked(server, step):
        wait_until(lambda: Wire(server.url).metric("runs_parked") == 1)
        if step == 1:
            server.kill()
            server.start_again()
            assert len(list((tmp_path / "silent" / "parked").iterdir())) == 1, "the new process's"

    silent = trained(tmp_path / "silent", until_parked, "--park-seconds", "0.4")
    assert silent == trained(tmp_path / "heard", lambda *_: None)
    assert not list((tmp_path / "silent" / "parked").iterdir())


def test_what_was_trained_before_a_kill_is_there_after_it(start, tiny_llama_dir, tmp_path):
    server = start(tiny_llama_dir, tmp_path)
    client = server.client().create_lora_training_client("tiny", rank=4, seed=1)
    before = client.forward_backward([datum(1)], "cross_entropy").result()
    server.kill()
    server.start_again()
    client.optim_step(ADAM).result()
    after = client.forward_backward([datum(1)], "cross_entropy").result()
    assert after.metrics["loss:sum"] < before.metrics["loss:sum"]
    assert server.stop() == 0
    begun = time.monotonic()
    server.start_again()  # after a proper end, too
    assert time.monotonic() - begun < 60
    client.save_state("end").result()
    assert server.stop() == 0
