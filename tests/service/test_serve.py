"""`twinkle serve`: its options, from the command line and from YAML, and where it answers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from service.conftest import PROGRAM, Server
from service.wire import Wire

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve.yaml"


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
            "device": "cpu",
            "root_path": "",
            "log_level": "info",
            "accept_other_arithmetic": False,
            "auth": "open",
            "snapshot_seconds": 60,
            "compress": False,
            "token_budget": 4096,
            "deterministic": True,
            "max_body_bytes": 256 << 20,
        }.items()
    )
    file = tmp_path / "serve.yaml"
    file.write_text(first.stdout)
    assert serve("--config", file, "--print-config").stdout == first.stdout
    options = {
        re.split("[ ,]", line.strip())[0]
        for line in serve("--help").stdout.splitlines()
        if "--" in line[:4]
    }
    keys = {"--" + key.replace("_", "-") for key in told}
    assert options == keys | {
        "--config", "--check", "--print-config", "--print-reference", "--until-stdin-ends",
    }  # fmt: skip


def test_without_arguments_it_is_smollm2_by_both_names():
    printed = serve("--print-config").stdout
    assert "\nmodel: smollm2\n" in printed
    assert "\nname: [smollm2, HuggingFaceTB/SmolLM2-135M-Instruct]\n" in printed


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
        ("max_body_bytes_total: 1048576\n", "it must be at least max_body_bytes, 268435456"),
    ],
)
def test_a_check_fails_with_the_reason(text, said, tiny_llama_dir, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(text.replace("MODEL", tiny_llama_dir))
    result = serve("--config", file, "--check", "--state", tmp_path)
    assert result.returncode == 1
    assert said in result.stderr
    assert result.stdout == ""


def test_the_reference_of_options_is_the_one_in_the_documentation():
    page = Path(__file__).parents[2] / "docs/options.md"
    assert serve("--print-reference").stdout == page.read_text()


def sampled(server):
    """What 16 samples at once of one long prompt are answered, and tokens that they shared."""
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


def test_options_of_the_engine_and_of_the_service_have_their_effect(
    server, tiny_llama_dir, tmp_path
):
    """A queue of one operation, bodies of at most 1 MiB, and no prefix cache."""
    long = b" " * 1100000
    assert Wire(server.url).post("create_session", long).status == 422, "it is no JSON"
    statuses, shared = sampled(server)
    assert statuses == {200} and shared > 0
    queue = ["--max-queued", "1", "--max-given", "1"]
    small = [*queue, "--max-body-bytes", "1048576", "--no-prefix-cache"]
    other = Server(tiny_llama_dir, tmp_path / "state", *small)
    try:
        assert Wire(other.url).post("create_session", long).status == 413
        assert sampled(other) == ({200, 429}, 0)
    finally:
        assert other.stop() == 0


def test_every_path_is_also_served_below_the_root_path(tiny_llama_dir, tmp_path):
    tinker = pytest.importorskip("tinker")
    server = Server(tiny_llama_dir, tmp_path / "state", "--root-path", "/team/twinkle")
    try:
        for prefix in ("/team/twinkle", ""):
            url = server.url + prefix
            with tinker.ServiceClient(base_url=url, api_key="tml-test") as client:
                sampler = client.create_sampling_client(base_model="tiny")
                assert sampler.get_base_model() == "tiny"
    finally:
        assert server.stop() == 0


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
