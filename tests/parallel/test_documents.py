"""The torchrun script of the source documents over several processes: the bits of one."""

import pytest
from parallel.processes import alone, sha256, torchrun
from seed_scripts import BEST_PRACTICES, with_sizes

SIZES = {
    "range(100)": "range(20)",
    "range(1000)": "range(80)",
    "step % 20": "step % 2",
    "step % 40": "step % 4",
}


def places(model, data_dir):
    data = data_dir / "self_cognition.jsonl"
    return {
        "TWINKLE_MODEL_ID_ALIASES": f"ms://Qwen/Qwen3.5-4B={model}",
        "TWINKLE_DATASET_ID_ALIASES": f"ms://swift/self-cognition={data}",
    }


def fsdp2(file, dp, fsdp):
    """The document's script in a file, for these ranks."""
    mesh = {"fsdp_size=4, dp_size=2": f"fsdp_size={fsdp}, dp_size={dp}"}
    file.write_text(with_sizes(BEST_PRACTICES, SIZES | mesh))
    return file


def check(folder, dp, fsdp, where):
    """folder: in which the script runs in folders of its own, and saves."""
    one, several = folder / "one", folder / "several"
    for each in (one, several):
        each.mkdir()
    told = alone("noted.py", fsdp2(folder / "one.py", 1, 1), cwd=one, **where)
    assert sum(name == "forward_backward" for name, _ in told) == 10
    assert sum(name == "calculate_loss" for name, _ in told) == 6  # of two evaluations
    script, size = fsdp2(folder / "several.py", dp, fsdp), dp * fsdp
    assert torchrun(size, "noted.py", script, cwd=several, **where) == [told] * size
    saved = sorted(each.name for each in (one / "output").iterdir())
    assert saved == sorted(each.name for each in (several / "output").iterdir())
    assert {"checkpoint-4", "last-checkpoint"} <= set(saved)
    for name in saved:
        assert sha256(several / "output" / name) == sha256(one / "output" / name)


@pytest.mark.parametrize(("dp", "fsdp"), [(2, 1), (2, 2)])
def test_the_documents_script_on_a_tiny_model(dp, fsdp, tiny_llama_dir, data_dir, tmp_path):
    check(tmp_path, dp, fsdp, places(tiny_llama_dir, data_dir))


def test_the_documents_script_on_a_real_model(smollm2_dir, data_dir, tmp_path):
    check(tmp_path, 2, 1, places(smollm2_dir, data_dir))
