"""`twinkle serve`: its options, from the command line and from YAML, and where it answers."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from service.conftest import PROGRAM, Server
from service.wire import Wire, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/serve.yaml"
OPERATING = ROOT / "docs/operating.md"


def serve(*arguments):
    from twinkle import program

    if program.path() is None:
        pytest.skip("bin/twinkle is not built")
    return subprocess.run(
        [*PROGRAM, "serve", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_the_example_is_eight_lines_and_would_be_served(tiny_llama_dir, tmp_path):
    assert len(EXAMPLE.read_text().splitlines()) <= 8
    place = ["--model", tiny_llama_dir, "--state", tmp_path / "state"]
    result = serve("--config", EXAMPLE, "--check", *place)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"ok: llama of 2 layers from {tiny_llama_dir} on cpu",
        "names: smollm2, my-team/assistant",
        "address: http://127.0.0.1:8000",
        "auth: open, nobody is asked for a key",
        f"state: {tmp_path / 'state'}",
    ]
    assert not (tmp_path / "state").exists()


def test_what_is_printed_is_the_whole_configuration_and_reads_back(tmp_path):
    yaml = pytest.importorskip("yaml")
    first = serve("--config", EXAMPLE, "--port", "8001", "--print-config")
    assert first.returncode == 0, first.stderr
    told = yaml.safe_load(first.stdout)
    assert told.items() >= (yaml.safe_load(EXAMPLE.read_text()) | {"port": 8001}).items()
    assert (
        told.items()
        >= {
            "root_path": "",
            "log_level": "info",
            "accept_other_arithmetic": False,
            "snapshot_seconds": 60,
            "compress": False,
            "token_budget": 4096,
            "deterministic": True,
            "max_body_bytes": 64 << 20,
        }.items()
    )
    file = tmp_path / "serve.yaml"
    file.write_text(first.stdout)
    assert serve("--config", file, "--print-config").stdout == first.stdout
    options = {
        re.split("[ ,]", line.strip())[0]
        for line in serve("--help-all").stdout.splitlines()
        if "--" in line[:4]
    }
    keys = {"--" + key.replace("_", "-") for key in told}
    assert options == keys | {
        "--auth", "--device",  # nobody said what they are: each start finds it
        "--config", "--check", "--print-config", "--print-reference", "--until-stdin-ends",
        "--help-all",
    }  # fmt: skip


def test_a_printed_configuration_asks_for_keys_that_are_made_later(tmp_path, tiny_llama_dir):
    state, file = tmp_path / "state", tmp_path / "serve.yaml"
    place = ("--model", tiny_llama_dir, "--state", state)
    printed = serve(*place, "--print-config").stdout
    assert "\n# auth: open\n" in printed and "\n# device: " in printed
    assert "\nauth: open\n" in serve(*place, "--auth", "open", "--print-config").stdout
    file.write_text(printed)
    make = [*PROGRAM, "keys", "create", "--tenant", "a", "--state", state]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    for _ in range(2):
        subprocess.run(make, env=env, check=True, capture_output=True, timeout=60)
    assert "\n# auth: keys\n" in serve("--config", file, "--print-config").stdout
    warning = (
        f"twinkle: auth is open although {state}/keys.json has 2 keys: nobody is asked for one"
    )
    assert warning not in serve("--config", file, "--check").stderr
    told = serve("--config", file, "--auth", "open", "--check")
    assert told.returncode == 0 and warning in told.stderr


def test_without_arguments_it_is_smollm2_by_both_names():
    printed = serve("--print-config").stdout
    assert "\nmodel: smollm2\n" in printed
    assert "\nname: [smollm2, smollm2-q4_1]\n" in printed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 1\n", "serve.yaml:1: 'prot' is no key of `twinkle serve`; did you mean 'port'?"),
        (
            "model: MODEL\nport: x\n",
            "serve.yaml:2: port is 'x', it must be an integer of at least 0",
        ),
        (
            "log_level: loud\n",
            "serve.yaml:1: log_level is 'loud', it must be 'debug', 'info', 'warning', 'error'",
        ),
        ("token_budget: 0\n", "serve.yaml:1: token_budget is '0', it must be an integer of at"),
        ("token_budge: 5\n", "is no key of `twinkle serve`; did you mean 'token_budget'?"),
        ("model: MODEL\nroot_path: p\n", "root_path is 'p', it must begin with '/'"),
        ("model: MODEL\nname: 'a:b'\n", "name 'a:b' must be a text without ':'"),
        ("model: /no/model\n", "/no/model"),
        (
            "max_body_bytes_total: 1048576\n",
            "max_body_bytes is 67108864 (its default), it must be at most max_body_bytes_total",
        ),
    ],
)
def test_a_check_fails_with_the_reason(text, said, tiny_llama_dir, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(text.replace("MODEL", tiny_llama_dir))
    result = serve("--config", file, "--check", "--state", tmp_path)
    assert result.returncode == (1 if said == "/no/model" else 2)
    assert said in result.stderr
    assert result.stdout == ""


def test_a_state_on_a_file_system_that_cannot_be_written_is_refused_by_its_path(
    tiny_llama_dir, tmp_path
):
    state = tmp_path / "state"
    state.mkdir()
    mounted = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    if subprocess.run([*alone, mounted, state], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may mount nothing")
    command = [*PROGRAM, "serve", "--check", "--model", tiny_llama_dir, "--state", str(state)]
    result = subprocess.run(
        [*alone, mounted + ' && exec "$@"', state, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 2
    assert f"but the folder '{state}' cannot be written: choose another" in result.stderr


def test_the_reference_of_options_is_the_one_in_the_documentation():
    page = Path(__file__).parents[2] / "docs/options.md"
    assert serve("--print-reference").stdout == page.read_text()


def sampled(server):
    """Answers of 16 samples at once of one long prompt, and tokens that they shared."""
    wire = Wire(server.url)
    body = {"session_id": wire.session(), "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler = wire.ok("create_sampling_session", body)["sampling_session_id"]
    chunk = {"tokens": [3 + i % 200 for i in range(200)], "type": "encoded_text"}
    answers = [
        wire.post("asample", {
            "sampling_session_id": sampler, "seq_id": seq_id, "prompt": {"chunks": [chunk]},
            "sampling_params": {"max_tokens": 100, "stop": []},
        })
        for seq_id in range(16)
    ]  # fmt: skip
    for answer in answers:
        if answer.status == 200:
            wire.result(answer.json())
    metrics = wire.send("GET", "/metrics").body.decode()
    shared = re.search(r"^twinkle_prefix_tokens_total (\d+)$", metrics, re.MULTILINE)
    return {answer.status for answer in answers}, int(shared[1])


def test_the_numbers_of_metrics_are_those_that_operating_md_explains(server):
    """By name, and by labels where a number has some by now."""
    wire = Wire(server.url)
    assert wire.post("create_session", {}).status == 200
    told = wire.send("GET", "/metrics").body.decode()
    names = re.findall(r"^# TYPE (\w+) ", told, re.MULTILINE)
    assert len(names) == len(set(names))
    labels = {}
    for name, said in re.findall(r"^(\w+)\{(.*)\} ", told, re.MULTILINE):
        own = [label for label in re.findall(r'(\w+)="', said) if label != "le"]
        if own:  # a histogram's numbers have its name and an end of their own
            labels[re.sub("_(bucket|sum|count)$", "", name)] = ",".join(own)
    assert labels["twinkle_requests_total"] == "route,status"
    rows = re.findall(r"^\| (`(?:twinkle|process)_.*?) \|", OPERATING.read_text(), re.MULTILINE)
    explained = dict(re.findall(r"`(\w+)(?:\{([\w,]+)\})?`", " ".join(rows)))
    assert sorted(explained) == sorted(names)
    assert {name: explained[name] for name in labels} == labels


def test_options_of_the_engine_and_of_the_service_have_their_effect(
    server, tiny_llama_dir, tmp_path
):
    """A queue of one operation, bodies of at most 1 MiB, and no prefix cache."""
    long = b" " * 1100000
    assert Wire(server.url).post("asample", long).status == 422, "it is no JSON"
    statuses, shared = sampled(server)
    assert statuses == {200} and shared > 0
    queue = ["--max-queued", "1", "--max-given", "1"]
    small = [*queue, "--max-body-bytes", "1048576", "--no-prefix-cache"]
    other = Server(tiny_llama_dir, tmp_path / "state", *small)
    try:
        refused = Wire(other.url).post("asample", long)
        assert refused.status == 413
        assert refused.detail == (
            "the body is longer than 1048576 bytes, max_body_bytes; send a shorter request, or "
            "have the operator raise it"
        )
        refused = Wire(other.url).post("create_session", long[: 65 << 10])
        assert refused.status == 413 and "65536 bytes, the most of this path; " in refused.detail
        assert sampled(other) == ({200, 429}, 0)
    finally:
        assert other.stop() == 0


def test_a_service_is_one_process_of_the_program(server):
    def parent(process):
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])

    assert sampled(server)[0] == {200}
    service = Path(f"/proc/{server.process.pid}")
    assert (service / "exe").resolve().name == "twinkle", "and not Python"
    others = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is gone
            others += [process] if parent(process) == server.process.pid else []
    assert not others


def test_every_path_is_also_served_below_the_root_path(tiny_llama_dir, tmp_path):
    tinker = pytest.importorskip("tinker")
    server = Server(tiny_llama_dir, tmp_path / "state", "--root-path", "/team/twinkle")
    try:
        for prefix in ("/team/twinkle", ""):
            url = server.url + prefix
            client = tinker.ServiceClient(base_url=url, api_key="tml-test")
            sampler = client.create_sampling_client(base_model="tiny")
            assert sampler.get_base_model() == "tiny"
    finally:
        assert server.stop() == 0


def test_an_address_of_version_6_is_one_that_clients_can_use(tiny_llama_dir, tmp_path):
    tinker = pytest.importorskip("tinker")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as e:
        pytest.skip(f"this machine has no ::1: {e}")
    server = Server(tiny_llama_dir, tmp_path / "state", "--host", "::1")
    try:
        assert re.fullmatch(r"http://\[::1\]:\d+", server.url)
        client = tinker.ServiceClient(base_url=server.url, api_key="tml-test")
        assert client.create_sampling_client(base_model="tiny").get_base_model() == "tiny"
    finally:
        assert server.stop() == 0
    said = serve("--check", "--model", tiny_llama_dir, "--state", tmp_path / "b", "--host", "::1")
    assert "\naddress: http://[::1]:8000\n" in said.stdout


def test_a_client_compresses_when_it_is_asked_to(server, tiny_llama_dir, tmp_path, monkeypatch):
    tinker = pytest.importorskip("tinker")
    import tinker.resources.training as resource

    sent = []

    original = resource.zstd.ZstdCompressor

    class Compressor:
        def compress(self, body):
            sent.append(body)
            return original().compress(body)

    monkeypatch.setattr(resource.zstd, "ZstdCompressor", Compressor)
    row = tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1, 2, 3] * 40),
        loss_fn_inputs={"target_tokens": [2, 3, 1] * 40, "weights": [1.0] * 120},
    )

    def loss(it):
        with it.client() as service:
            client = service.create_lora_training_client("tiny", rank=4, seed=1).result()
            return client.forward_backward([row], "cross_entropy").result().metrics["loss:sum"]

    plain = loss(server)
    assert sent == []
    compressing = Server(tiny_llama_dir, tmp_path / "state", "--compress")
    try:
        assert loss(compressing) == plain
    finally:
        assert compressing.stop() == 0
    assert len(sent) == 1


def taken(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_without_arguments_smollm2_is_served_and_sampled_by_both_names(smollm2_dir, tmp_path):
    tinker = pytest.importorskip("tinker")
    if taken(8000):
        pytest.skip("another process listens on port 8000, the default")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    process = subprocess.Popen(
        [*PROGRAM, "serve"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        assert line == "twinkle serves smollm2 at http://127.0.0.1:8000\n"
        prompt = tinker.ModelInput.from_ints([504, 5986, 282, 4649, 314])
        params = tinker.SamplingParams(max_tokens=4, temperature=0.0)
        drawn = []
        client = tinker.ServiceClient(base_url="http://127.0.0.1:8000", api_key="tml-any")
        for name in ("smollm2", "smollm2-q4_1"):
            sampler = client.create_sampling_client(base_model=name)
            drawn.append(sampler.sample(prompt, 1, params).result().sequences[0].tokens)
        assert drawn[0] == drawn[1] and len(drawn[0]) == 4
        assert (tmp_path / "twinkle-state/journal").is_dir()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.stdout.close()


def test_polls_that_are_held_at_sigterm_are_answered_and_the_status_is_0(tiny_llama_dir, tmp_path):
    """One with its result, one, whose work waits for a request that does not come, with 408."""
    pb = pytest.importorskip("tinker.proto.tinker_public_pb2")
    hold = 12  # seconds, several times what the work takes
    options = ["--log-level", "off", "--hold-seconds", str(hold)]
    server = Server(tiny_llama_dir, tmp_path / "state", *options)
    wire = Wire(server.url)
    body = {"session_id": wire.session(), "sampling_session_seq_id": 0, "base_model": "tiny"}
    sampler = wire.ok("create_sampling_session", body)["sampling_session_id"]
    waits = wire.step(wire.run(), 2).json()

    def sample(seq_id, num_samples):
        return wire.ok("asample", {
            "sampling_session_id": sampler, "seq_id": seq_id, "num_samples": num_samples,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 5, 9]}]},
            "sampling_params": {"max_tokens": 400, "stop": []},
        })  # fmt: skip

    # As many as this machine draws in about 3 s, which is far from the polls' begin and their end.
    begun = time.monotonic()
    wire.result(sample(0, 32))
    count = min(max(int(32 * 3 / (time.monotonic() - begun)), 1), 256)
    works = sample(1, count)

    def poll(ack):
        answer = Wire(server.url, timeout=60).post(
            "retrieve_future", {"request_id": ack["request_id"]}
        )
        return answer, time.monotonic()

    def num_held():
        told = wire.send("GET", "/metrics").body.decode()
        return int(re.search(r"^twinkle_polls_held (\d+)$", told, re.MULTILINE)[1])

    with ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(poll, ack) for ack in (works, waits)]
        wait_until(lambda: num_held() == 2 or polls[0].done())
        assert not polls[0].done(), "it ended before the signal; make it longer"
        begun = time.monotonic()
        server.process.terminate()
        wait_until(lambda: not taken(Wire(server.url).place.port))  # nobody else comes in
        (done, _), (not_yet, at) = [each.result(60) for each in polls]
    assert done.status == 200
    drawn = pb.SampleResponse.FromString(done.body).sequences
    assert [len(each.tokens) for each in drawn] == [4 * 400] * count  # int32
    assert not_yet.status == 408
    assert at - begun < hold + 1
    assert server.process.wait(hold + 5 - (time.monotonic() - begun)) == 0
    server.process.stdout.close()


class Configured(Server):
    """One whose options are in a file, but for its model, state and port."""

    def __init__(self, model, state, file, log):
        self.command = [*PROGRAM, "serve", "--model", model, "--state", state, "--config", file]
        self.state, self.log, self.url = state, log, None
        self.start_again()


def test_a_hangup_has_it_read_its_file_again(tiny_llama_dir, tmp_path):
    file, log = tmp_path / "serve.yaml", tmp_path / "log"

    def hang_up(text, *lines):
        """The log since then, when it has all of these."""
        file.write_text(text)
        before = len(log.read_text())
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: all(line in log.read_text()[before:] for line in lines))
        return log.read_text()[before:]

    def names():
        told = wire.send("GET", "/api/v1/get_server_capabilities").json()
        return [model["model_name"] for model in told["supported_models"]]

    file.write_text("name: [one]\nlog_level: warning\nmax_sessions: 1\n")
    with log.open("w") as written:
        server = Configured(tiny_llama_dir, tmp_path / "state", file, written)
    wire = Wire(server.url)
    assert names() == ["one"]
    wire.ok("create_session", {})
    assert wire.post("create_session", {}).status == 422
    more = "name: [one, two]\nlog_level: info\nmax_sessions: 2\ntoken_budget: 100\n"
    told = hang_up(more, "options changed: 3")
    assert "SIGHUP: name was '[one]' and is '[one, two]'" in told
    assert "SIGHUP: token_budget stays '4096', and is '100' from the next start on" in told
    assert names() == ["one", "two"]
    wire.ok("create_session", {})
    assert wire.post("create_session", {}).status == 422
    for wrong, line in [
        ("max_sessions: 5\nname: [\n", f"{file}:3: this is no YAML"),
        ("max_sessions: 5\nmax_samplers: -1\n", f"{file}:2: "),
        ("max_sesions: 5\n", "did you mean 'max_sessions'?"),
        ("max_sessions: 5\nroot_path: x\n", "root_path is 'x'"),
    ]:
        hang_up(wrong, "error SIGHUP: all options stay as they are: ", line)
    assert names() == ["one", "two"] and wire.post("create_session", {}).status == 422
    file.unlink()
    assert server.stop() == 0


def test_it_goes_on_after_a_hangup_and_ends_though_nobody_reads_its_log(
    start, tiny_llama_dir, tmp_path
):
    read, write = os.pipe()
    server = start(tiny_llama_dir, tmp_path, log=write)
    os.close(write)
    for hangup in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        server.process.send_signal(hangup)
    wire = Wire(server.url)
    for _ in range(400):  # lines for more than a pipe takes
        assert wire.send("GET", "/api/v1/samplers/" + "a" * 200).status == 404
    assert server.stop() == 0
    assert b"SIGHUP: the server goes on" in os.read(read, 1 << 20)
    os.close(read)
