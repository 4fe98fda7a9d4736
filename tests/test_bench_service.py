"""bench/service: its client, the server that does nothing, its rows' floors; ours if built."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import run  # noqa: E402
import verdict  # noqa: E402
from service import client, questions, stub  # noqa: E402


class QuickRun:
    rounds, processes = 2, 1

    def progress(self, label):
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
    ],
)
def test_the_services_floors_are_those_that_are_promised(id_, what, limit, least, unit):
    worse = 1.01 if unit == "ms" else 0.99
    for ours, missed in ((least, []), (least * worse, [id_])):
        samples = {"ours": [ours], "peer": [1.0]}
        row = questions.row(QuickRun(), id_, what, samples, limit, unit)
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
    for row in made:
        assert row["id"] == id_ and row["ours"] > 0 and row["peer"] > 0
        assert len(row["samples"]["ours"]) == len(row["samples"]["peer"])
        assert len(row["samples"]["ours"]) == (1 if id_ == "S6" else QuickRun.rounds)
