"""The document of the engine, and what the module exports."""

from pathlib import Path

import pytest

import twinkle.engine

pytestmark = pytest.mark.usefixtures("engine_built")


@pytest.mark.parametrize("example", range(3))
def test_the_examples_of_the_document_run(tiny_llama_dir, tmp_path, monkeypatch, example):
    text = (Path(__file__).parents[3] / "docs" / "engine.md").read_text()
    code = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    assert len(code) == 3
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code[example].replace("smollm2", tiny_llama_dir), "docs/engine.md", "exec"), names)
    if example == 0:
        assert (tmp_path / "alice" / "adapter_model.safetensors").is_file()
    if example == 1:
        assert names["first"].sequence == 0 and len(names["response"].sequences) == 1
    if example == 2:
        assert names["version"] == 1 and len(names["replies"]) == 2


def test_the_module_exports_what_it_documents():
    assert set(twinkle.engine.__all__) == {
        "Engine", "Future", "Result", "Tenant", "Token", "TokenStream",
    }  # fmt: skip
