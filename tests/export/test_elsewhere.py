"""docs/use-it-elsewhere.md: llama.cpp beside transformers, the page's Twinkle commands, and those
of other programs where these are installed."""

import os
import re
import shlex
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from export.exported import draw_adapter, draw_model, torch, transformers, twinkle

PAGE = (Path(__file__).parents[2] / "docs/use-it-elsewhere.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]
PROMPTS = [
    "What is the capital of France?", "Name three primary colours.", "Why is the sky blue?",
    "Add 17 and 25.", "Write a line about the sea.", "Who wrote Hamlet?", "What is a prime number?",
    "Translate 'good morning' into French.", "How many legs has a spider?", "What do bees make?",
]  # fmt: skip
GREEDY = {"temperature": 0, "top_k": 1, "seed": 0}


def served(file):
    """llama.cpp's server of a GGUF file, in this process."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp (llama.cpp) is not installed")
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel = 512, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = min(os.cpu_count(), 4)
    return xllamacpp.Server(params)


def tokens_of(answer):
    """[(id, log-probability)] of an answer."""
    (choice,) = answer["choices"]
    return [(token["id"], token["logprob"]) for token in choice["logprobs"]["content"]]


def logprob_after(server, ids, token):
    answer = server.handle_completions({"prompt": ids, "max_tokens": 1, "logprobs": 100, **GREEDY})
    (first,) = answer["choices"][0]["logprobs"]["content"]
    return next(one["logprob"] for one in first["top_logprobs"] if one["id"] == token)


def test_llama_cpp_gives_the_greedy_text_of_transformers(real, smollm2_dir):
    folder, merged = real
    exact, small = (served(folder / kind / f"model-{kind}.gguf") for kind in ("f16", "q8_0"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    logprobs = []
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text).input_ids
        with torch.no_grad():
            reply = merged.generate(torch.tensor([ids]), max_new_tokens=32, do_sample=False)
        wanted = reply[0, len(ids) :].tolist()
        answer = exact.handle_chat_completions(
            {"messages": messages, "max_tokens": 32, "logprobs": True, "top_logprobs": 1, **GREEDY}
        )
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert [token for token, _ in tokens_of(answer)] == wanted, prompt
        f16 = [logprob for _, logprob in tokens_of(answer)]
        q8 = [logprob_after(small, ids + wanted[:i], token) for i, token in enumerate(wanted)]
        logprobs += zip(f16, q8, strict=True)
    f16, q8 = torch.tensor(logprobs, dtype=torch.float64).mean(dim=0).tolist()
    assert abs(f16 - q8) < 0.02 and f16 != q8


def test_the_twinkle_commands_of_the_page_run(tokenizer, tmp_path, monkeypatch):
    base = draw_model("llama", tokenizer, tmp_path / "base")
    draw_adapter(base, tmp_path / "outputs/latest/adapter")
    monkeypatch.chdir(tmp_path)
    ours = [shlex.split(line)[1:] for line in COMMANDS if line.startswith("twinkle ")]
    assert [words[0] for words in ours] == ["export", "chat", "export"]
    for words in ours:
        twinkle(*words)
    named = {word for line in COMMANDS for word in line.split() if word.startswith("outputs/")}
    assert not [name for name in sorted(named) if not Path(name).exists()]


@pytest.fixture(scope="session")
def outputs(real, tmp_path_factory):
    """A folder with the page's outputs/, of the built-in model."""
    folder, _ = real
    place = tmp_path_factory.mktemp("page")
    (place / "outputs/latest").mkdir(parents=True)
    (place / "outputs/latest/adapter").symlink_to(folder / "adapter")
    (place / "outputs/gguf").symlink_to(folder / "f16")
    twinkle("export", folder / "adapter", "--output", place / "outputs/merged")
    return place


def test_the_python_of_the_page_runs(outputs, monkeypatch):
    pytest.importorskip("xllamacpp", reason="xllamacpp (llama.cpp) is not installed")
    monkeypatch.chdir(outputs)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})


def answers(process, url):
    """True as soon as a server lists its models; False if it ends before that."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as response:
                return response.status == 200
        except OSError:
            time.sleep(0.2)
    return False


@pytest.mark.parametrize("line", [line for line in COMMANDS if not line.startswith("twinkle ")])
def test_other_programs_take_what_the_page_says(line, outputs, smollm2_dir):
    words = [smollm2_dir if word == "BASE" else word for word in shlex.split(line)]
    program = words[0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    if program == "ollama" and words[1] == "run":
        subprocess.run(["ollama", "create", "mine", "-f", "outputs/gguf/Modelfile"], cwd=outputs)
    if "serve" not in line:
        done = subprocess.run(
            words, cwd=outputs, input="Who are you?\n/exit\n", text=True, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        return
    url = "http://127.0.0.1:" + (words[words.index("--port") + 1] if "--port" in words else "8000")
    server = subprocess.Popen(words, cwd=outputs)
    try:
        assert answers(server, url)
    finally:
        server.terminate()
        server.wait()
