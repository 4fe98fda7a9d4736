"""The torchrun script of the source documents over several processes: the bits of one."""

import json

from parallel.processes import alone, sha256, torchrun


def places(model, data_dir):
    data = data_dir / "self_cognition.jsonl"
    return {
        "TWINKLE_MODEL_ID_ALIASES": f"ms://Qwen/Qwen3.5-4B={model}",
        "TWINKLE_DATASET_ID_ALIASES": f"ms://swift/self-cognition={data}",
    }


def check(one, several, size, where, **mesh):
    """one, several: folders in which the script runs, and saves."""
    for folder in (one, several):
        folder.mkdir()
    told = alone("noted.py", cwd=one, MESH="{}", **where)
    assert sum(name == "forward_backward" for name, _ in told) == 10
    assert sum(name == "calculate_loss" for name, _ in told) == 6  # of two evaluations
    assert torchrun(size, "noted.py", cwd=several, MESH=json.dumps(mesh), **where) == [told] * size
    saved = sorted(folder.name for folder in (one / "output").iterdir())
    assert saved == sorted(folder.name for folder in (several / "output").iterdir())
    assert {"checkpoint-4", "last-checkpoint"} <= set(saved)
    for name in saved:
        assert sha256(several / "output" / name) == sha256(one / "output" / name)


def test_the_documents_script_on_a_tiny_model(tiny_llama_dir, data_dir, tmp_path):
    where = places(tiny_llama_dir, data_dir)
    check(tmp_path / "one", tmp_path / "two", 2, where, dp_size=2)


def test_the_documents_script_on_a_real_model(smollm2_dir, data_dir, tmp_path):
    where = places(smollm2_dir, data_dir)
    check(tmp_path / "one", tmp_path / "two", 2, where, dp_size=2)
