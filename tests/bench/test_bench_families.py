"""bench/: models with drawn weights and the work that limits count; F2 to F4 on small ones."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench.own_worker import OwnWorker

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import drawn  # noqa: E402
import families  # noqa: E402
import foreign  # noqa: E402
import limits  # noqa: E402
import worker as processes  # noqa: E402

SMALL = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 4, "head_dim": 16,
    "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip
DELTA = {"linear_key_head_dim": 8, "linear_value_head_dim": 16, "intermediate_size": 48}
DELTA |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2}
TINY = {
    name: (kind, fields | SMALL | (EXPERTS if name == "qwen3_moe" else DELTA))
    for name, (kind, fields) in drawn.MODELS.items()
}


@pytest.mark.parametrize("name", list(TINY))
def test_a_model_is_written_once_with_the_matrices_that_its_limits_count(name, tmp_path):
    safetensors = pytest.importorskip("safetensors")
    directory = Path(drawn.written(tmp_path, name, TINY))
    file = directory / "model.safetensors"
    time = file.stat().st_mtime_ns
    assert drawn.written(tmp_path, name, TINY) == str(directory)
    assert file.stat().st_mtime_ns == time and list(tmp_path.iterdir()) == [directory]
    with safetensors.safe_open(file, "np") as tensors:
        names = tensors.keys()
        shapes = {key: tensors.get_slice(key).get_shape() for key in names}
    matrices = {key: shape for key, shape in shapes.items() if len(shape) == 2}
    shape = drawn.shape_of(TINY[name][1])
    assert shape.resident_bytes == 2 * sum(map(math.prod, matrices.values()))
    adapted = [key for key in matrices if ".mlp.gate." not in key and ".layers." in key]
    fused = [key for key in adapted if ".experts." in key and ".gate_proj." in key]
    widths = sum(sum(matrices[key]) for key in adapted)
    # Gate and up of an expert are one, with one input.
    widths -= sum(matrices[key][1] for key in fused)
    assert shape.adapter_weights(4) == 4 * widths


def test_a_step_of_decoding_reads_the_experts_that_its_sequences_choose():
    shape = drawn.shape_of(TINY["qwen3_moe"][1])
    held = shape.resident_bytes - 2 * shape.head_weights  # the embedding is not read
    assert shape.step_bytes(1) == pytest.approx(shape.bytes)
    assert shape.step_bytes(1) < shape.step_bytes(8) < held
    assert shape.step_bytes(1000) == pytest.approx(held)
    dense = drawn.shape_of(TINY["qwen3_5"][1])
    assert dense.step_bytes(8) - dense.step_bytes(1) == 7 * 4 * 3 * 2 * 8 * 16  # the states


class Run:
    """The part of bench/run.py's Run that a question needs."""

    threads, rounds, attempts, num_tokens = 1, 1, 1, 8
    machine = limits.Machine(gemm_gflops=100.0, read_gb_s=10.0, note="fast")
    device, options, kept, patience = "cpu", {}, None, foreign.PATIENCE
    inputs = SimpleNamespace(
        prompts=lambda count: [[7, 1008, 9]] * count,
        full_batches=lambda count, size, length: (
            [{"ids": [[5, 700, 30, 2]] * 2, "labels": [[700, 30, 2, -100]] * 2}] * count
        ),
    )

    def progress(self, _):
        return lambda _: None

    def machine_fields(self):
        return {"cpu": "a CPU", "threads": self.threads, "machine": self.machine.note}


def test_training_and_decoding_of_small_models_agree_with_the_peers_in_its_fastest_way(
    tmp_path, monkeypatch
):
    pytest.importorskip("twinkle._core", reason="the extension is not built")
    pytest.importorskip("peft")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(drawn, "MODELS", TINY)
    monkeypatch.setattr(processes, "Worker", OwnWorker)
    monkeypatch.setattr(families, "SEQUENCES", (2,))
    found = [row for ask in (families.f2, families.f3, families.f4) for row in ask(Run())]
    assert all(row["valid"] for row in found), json.dumps(found, indent=1)
    floors = [(row["id"], row["unit"], row["floor"], row["goal"]) for row in found]
    memory = [(id_, "MiB", 1.0, None) for id_ in ("F2", "F3", "F4")]
    assert floors == [
        *[("F2", "tokens/s", 1.5, 2.5), memory[0]] * 2,
        *[("F3", "tokens/s", 2.0, 5.0), memory[1]],
        *[("F4", "tokens/s", 2.0, 5.0), memory[2]] * 2,
    ]
    said = ["its experts by" in " ".join(row["notes"]) for row in found]
    assert said == [True, False, True, False, False, False, True, False, False, False]
    for row in found[:5:2]:
        assert len(row["losses"]["ours"]) == len(row["losses"]["peer"]) == 2
