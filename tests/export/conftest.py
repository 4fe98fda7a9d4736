import pytest


@pytest.fixture(scope="module")
def tokenizer(tiny_llama_dir):
    from export.exported import transformers

    return transformers.AutoTokenizer.from_pretrained(tiny_llama_dir)


@pytest.fixture(scope="session")
def real(smollm2_dir, tmp_path_factory):
    """An adapter of the built-in model, its merged model in transformers, folder of exports."""
    from export.exported import draw_adapter, twinkle

    folder = tmp_path_factory.mktemp("real")
    adapter, merged = draw_adapter(smollm2_dir, folder / "adapter", ["q_proj", "v_proj"], 0.01)
    for kind in ("f16", "q8_0"):
        twinkle("export", adapter, "--to", "gguf", "--type", kind, "--output", folder / kind)
    return folder, merged
