"""bench/service: its client, the server that does nothing, its rows' floors; ours if built."""

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import limits  # noqa: E402
import run  # noqa: E402
import verdict  # noqa: E402
from foreign import PATIENCE  # noqa: E402
from inputs import RandomInputs  # noqa: E402
from service import client, questions, sizing, stub  # noqa: E402
from service import training as of_service  # noqa: E402


class QuickRun:
    rounds, attempts, processes, threads = 2, 2, 1, 2
    device, options, kept, patience = "cpu", {}, None, PATIENCE
    machine = limits.Machine(gemm_gflops=100.0, read_gb_s=10.0, note="fast")

    def __init__(self, model=None):
        self.model = model
        if model is not None:
            self.shape = limits.Shape.of(model)
            self.inputs = RandomInputs(self.shape.vocab, 64, seed=1)

    def progress(self, label, patience=None):
        return lambda round_: None

    def machine_fields(self):
        return {"cpu": "a CPU", "threads": 2, "machine": "fast"}


def test_the_clients_bytes_are_the_sdks_messages():
    tinker_pb = pytest.importorskip("tinker.proto.tinker_public_pb2")
    body = client.forward_backward("s:train:0", 300, 2, 3).split(b"\r\n\r\n", 1)[1]
    read = tinker_pb.ForwardBackwardRequest.FromString(body)
    assert (read.model_id, read.seq_id, len(read.data)) == ("s:train:0", 300, 2)
    inputs = read.data[1].loss_fn_inputs
    assert {name: list(tensor.shape) for name, tensor in inputs.items()} == {
        "target_tokens": [3],
        "weights": [3],
    }
    out = tinker_pb.ForwardBackwardOutput.FromString(stub.passed(1000))
    assert out.loss_fn_output_type == "ArrayRecord"
    out.metrics["loss:sum"] = 3.25
    assert client.loss_of(out.SerializeToString()) == 3.25


def test_rows_of_a_batch_are_the_sdks_data():
    tinker_pb = pytest.importorskip("tinker.proto.tinker_public_pb2")
    rows = of_service.scored({"ids": [[5, 6, 7]], "labels": [[6, 7, -100]]})
    assert rows == [([5, 6, 7], [6, 7, 0], [1.0, 1.0, 0.0])]
    body = client.forward_backward_of("s:train:0", 1, rows).split(b"\r\n\r\n", 1)[1]
    (datum,) = tinker_pb.ForwardBackwardRequest.FromString(body).data
    from tinker import types

    inputs = {"target_tokens": rows[0][1], "weights": rows[0][2]}
    tokens = types.ModelInput.from_ints(rows[0][0])
    sdks = types.Datum(model_input=tokens, loss_fn_inputs=inputs)
    for name, tensor in sdks.loss_fn_inputs.items():
        kinds = {"int64": "<q", "float32": "<f"}
        data = b"".join(struct.pack(kinds[tensor.dtype], value) for value in tensor.data)
        assert datum.loss_fn_inputs[name].dense == data


def test_the_server_that_does_nothing_answers_as_the_service_does():
    with client.Server(sys.executable, stub.__file__) as server:
        with client.Client(server.port) as asker:
            run_id = asker.new_run()
            ack = asker.ask(client.forward_backward(run_id, 1))
            assert b"passed:3" in ack
            assert asker.result("passed:100") == stub.passed(100)
        assert server._process.poll() is None
    assert server._process.poll() == 0


def test_a_share_of_the_values_is_that_which_so_many_do_not_exceed():
    values = list(range(100, 0, -1))
    assert [questions.share(values, part) for part in (0.0, 0.5, 0.99, 1.0)] == [1, 51, 100, 100]


def test_a_program_that_is_not_built_is_named():
    with pytest.raises(SystemExit, match="no build/release/absent: run `make build`"):
        client.program("absent")


@pytest.mark.parametrize(
    ("id_", "what", "limit", "least", "unit"),
    [
        ("S1", "submit to result, p50, a client", 0.3, 1.0, "ms"),
        ("S1", "what the service adds to the SDK's, p50", 0.5, 1.0, "ms"),
        ("S1", "submit to result, p99", 2.0, 5.0, "ms"),
        ("S2", "healthz", 50_000, 20_000, "requests/s"),
        ("S2", "results that are there", 50_000, 20_000, "requests/s"),
        ("S3", "the result of 1,048,576 log-probabilities, p99", 6.0, 20.0, "ms"),
        ("S6", "a heartbeat", 50.0, 200.0, "ms"),
    ],
)
def test_the_services_floors_are_those_that_are_promised(id_, what, limit, least, unit):
    worse = 1.01 if unit == "ms" else 0.99
    for ours, missed in ((least, []), (least * worse, [id_])):
        samples = {"ours": [ours], "peer": [1.0]}
        row = questions.row(QuickRun(), id_, what, samples, limit, unit)
        if id_ == "S6":
            row["peer_name"] = verdict.IDLE
        assert [miss.id for miss in verdict.misses([row], [])] == missed


@pytest.mark.parametrize("id_", ["S1", "S2", "S3", "S6"])
def test_the_service_over_a_model_that_computes_nothing_is_measured(id_):
    for name in ("null_service", "http_rate"):
        if not (ROOT / "build/release" / name).exists():
            pytest.skip(f"{name} is not built")
    if id_ in ("S1", "S6"):
        pytest.importorskip("tinker")
    made = list(run.QUESTIONS[id_](QuickRun()))
    assert made
    if id_ == "S6":
        assert [row["what"].endswith(", server time") for row in made] == [False, True]
        assert made[1]["ours"] <= made[0]["ours"], "the client waits for the server, too"
    for row in made:
        assert row["id"] == id_ and row["ours"] > 0 and row["peer"] > 0
        assert len(row["samples"]["ours"]) == len(row["samples"]["peer"])
        assert len(row["samples"]["ours"]) == (1 if id_ == "S6" else QuickRun.rounds)


@pytest.mark.parametrize("id_", ["S4", "S5"])
def test_training_through_the_service_is_measured_beside_the_engine(id_, tiny_llama_dir):
    from twinkle import program

    if program.path() is None:
        pytest.skip("bin/twinkle is not built")
    if id_ == "S5":
        pytest.importorskip("tinker")
    made = list(run.QUESTIONS[id_](QuickRun(str(tiny_llama_dir))))
    assert [row["id"] for row in made] == [id_] * (2 if id_ == "S4" else 1)
    for row in made:
        assert row["valid"], row["notes"]
        assert len(row["samples"]["ours"]) == len(row["foreign"]) == QuickRun.rounds
        assert row["ours"] > 0 and row["peer"] > 0 and row["limit"] > 0


def test_what_tenants_take_is_measured_beside_the_formulas(tiny_llama_dir, capsys):
    from twinkle import program

    if program.path() is None:
        pytest.skip("bin/twinkle is not built")
    sizing.measure(str(tiny_llama_dir), 8)
    told = re.findall(r"^rank 8: (.*?) {2,}(\S+) +(\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert len(told) == 4
    for what, measured, formula in told:
        if what.startswith("disk"):  # a tokenizer and the file's header lie beside the tensors
            assert float(formula) < float(measured) < float(formula) + 0.2, what
        if what.startswith("journal"):
            assert float(formula) < float(measured) < float(formula) + 4, what


def test_what_the_service_costs_training_has_its_floors():
    fields = {"unit": "x", "noisy": False, "valid": True, "notes": []}
    for id_, peer, least in (
        ("S4", verdict.ONE_CLIENT, 0.8),
        ("S5", verdict.IN_PROCESS, 0.952),
    ):
        for ratio, missed in ((least, []), (least - 0.01, [id_])):
            samples = {"ours": [1000 * ratio], "peer": [1000.0]}
            row = questions.make_row(id_, "training", peer, samples, 2000.0, **fields)
            assert [miss.id for miss in verdict.misses([row], [id_])] == missed


def test_the_servers_own_work_is_not_foreign():
    class Server:
        def __init__(self, *seconds):
            self.cpu_seconds = iter(seconds).__next__

    foreign = []
    for server in (Server(0.0, 1e6), Server(5.0, 5.0)):
        sample = {}
        with of_service.beside(server, sample):
            spin = "import time\nwhile time.process_time() < 0.3: pass"
            subprocess.run([sys.executable, "-c", spin], check=True)
        foreign.append(sample["foreign"])
    assert foreign[0] == 0 and foreign[1] > 0.1


def test_s4_is_recorded_with_its_cause():
    assert "\n| S4 |" in (ROOT / "docs/benchmarks.md").read_text()
    causes = (ROOT / "docs/benchmark-causes.md").read_text()
    cause = re.search(r"^- \*\*S4\*\*: (.*?)\n(?=\S)", causes, re.MULTILINE | re.DOTALL)[1]
    assert "64 steps of AdamW" in cause and re.search(r"at most [\d.]+ % is the service's", cause)
