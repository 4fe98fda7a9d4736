"""docs/coming-from-tinker.md: its commands as they stand there, and its refusals."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from service.conftest import Server, environment

pytest.importorskip("tinker")
pytest.importorskip("transformers")
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/coming-from-tinker.md").read_text()
URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def page(tiny_llama_dir, tmp_path_factory):
    """The page's server, of a tiny model, and the other lines of its commands."""
    terminals = [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)]
    (first, serve), (second, *others), *_ = terminals
    assert first == second == "source .venv/bin/activate"
    words = shlex.split(serve)
    assert words[:4] == ["twinkle", "serve", "--model", "smollm2"]
    state = tmp_path_factory.mktemp("state")
    it = Server(tiny_llama_dir, state, *words[4:6], "--log-level", "warning")
    assert words[6:] == ["--state", "twinkle-state"]
    yield it, others
    assert it.stop() == 0


def test_the_pages_commands_teach_the_model_and_sample_it(page, tmp_path):
    server, lines = page
    exports = dict(re.findall(r"^export (\w+)=(\S+)$", "\n".join(lines), re.MULTILINE))
    assert set(exports) == {"TINKER_BASE_URL", "TINKER_API_KEY", "HF_ENDPOINT"}
    exports = {name: value.replace(URL, server.url) for name, value in exports.items()}
    python, script, *arguments = shlex.split(lines[-1])
    assert python == "python" and len(exports) == len(lines) - 1
    offline = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"}
    kept = {key: value for key, value in environment().items() if key not in offline}
    for _ in range(2):  # a second time: what it saved is replaced
        result = subprocess.run(
            [sys.executable, ROOT / script, *arguments], cwd=tmp_path,
            env={**kept, **exports, "HF_HOME": str(tmp_path / "hub")},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout + result.stderr[-4000:]
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+) a token", result.stdout)]
    assert len(losses) == 15 and losses[-1] < losses[0] - 0.1
    assert re.search(r"^saved tinker://\S+:train:0/weights/learned$", result.stdout, re.MULTILINE)
    assert result.stdout.count("?") >= 3
    assert "Warning" not in result.stderr, result.stderr


def test_the_sdks_commands_that_the_page_names_work_and_others_say_that_they_do_not(page):
    server = page[0]
    run = server.client().create_lora_training_client("smollm2", rank=4).result().model_id

    def said(*arguments):
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-m", "tinker.cli", *arguments], capture_output=True, text=True,
                env={**environment(), "TINKER_BASE_URL": server.url, "TINKER_API_KEY": "tml-test",
                     "COLUMNS": "200"},
                timeout=120,
            )  # fmt: skip
            # On a busy machine the command's own process may abort as it ends, all said.
            if done.returncode != -signal.SIGABRT:
                break
        return done.returncode, done.stdout + done.stderr

    for command, word in (("model list", "smollm2"), (f"run info {run}", run), ("auth status", "")):
        status, text = said(*command.split())
        assert status == 0 and word in text, (command, text)
    for command in ("run list", "checkpoint list"):
        status, text = said(*command.split())
        assert status == 1 and "Resource not found" in text, (command, text)


def test_what_is_not_there_is_refused_at_once_as_the_page_says(page):
    import tinker
    from tinker import types

    service = page[0].client()
    with pytest.raises(tinker.NotFoundError):
        service.create_rest_client().list_training_runs().result()
    trainer = service.create_lora_training_client("smollm2", rank=4).result()
    ints = types.ModelInput.from_ints([1, 2, 3])
    data = [types.Datum(model_input=ints, loss_fn_inputs={"target_tokens": [2, 3, 4]})]

    def passed(loss, config=None):
        return trainer.forward_backward(data, loss, config).result()

    refused = {
        "--stable-reinforce importance_sampling": lambda: passed("stable_reinforce"),
        "unknown loss 'custom'": lambda: passed("custom"),
        "beta": lambda: passed("cross_entropy", {"beta": 1.0}),
        "nobody/model": lambda: service.create_lora_training_client("nobody/model").result(),
        "rank is 513": lambda: service.create_lora_training_client("smollm2", rank=513).result(),
        "image": lambda: service.create_sampling_client(base_model="smollm2").sample(
            prompt=types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png")]),
            num_samples=1, sampling_params=types.SamplingParams(max_tokens=1),
        ).result(),
    }  # fmt: skip
    for text, ask in refused.items():
        with pytest.raises((tinker.UnprocessableEntityError, tinker.RequestFailedError)) as told:
            ask()
        assert text in str(told.value)


def test_the_page_names_every_loss_of_the_sdk_as_there_or_as_refused():
    from typing import get_args

    from tinker.types import LossFnType

    losses = set(get_args(LossFnType))
    assert len(losses) >= 8
    defined = set(re.findall(r"LOSS\((\w+)\)", (ROOT / "twinkle/loss/losses.def").read_text()))
    section = PAGE.split("## The same")[1].split("## Different")[0]
    (refused,) = re.findall(r"^\|(.*unknown losses) \|", PAGE, re.MULTILINE)
    assert {name for name in losses if f"`{name}`" in section} == losses & defined
    assert {name for name in losses if f"`{name}`" in refused} == losses - defined
