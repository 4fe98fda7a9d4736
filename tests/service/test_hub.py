"""The hub's read paths of a server, as real clients of the hub take them."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("transformers")

TEXT = "Hello! Who are you?"
LOAD = """
import json, sys
from transformers import AutoTokenizer
text, *names = sys.argv[1:]
found = []
for name in names:
    tokenizer = AutoTokenizer.from_pretrained(name)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    found.append([tokenizer(text)["input_ids"], chat])
print(json.dumps(found))
"""
ASK_THE_SDK = """
import json, os, sys, tinker
service = tinker.ServiceClient(base_url=sys.argv[3], api_key=os.environ["HF_TOKEN"])
trained = service.create_lora_training_client(sys.argv[1], rank=4).get_tokenizer()
sampled = service.create_sampling_client(base_model=sys.argv[1]).get_tokenizer()
print(json.dumps([t(sys.argv[2])["input_ids"] for t in (trained, sampled)]))
"""


@pytest.fixture(scope="module")
def named(tiny_llama_dir, tmp_path_factory, twinkle):
    """A server that asks for a key, which is its `key`."""
    from service.conftest import Server

    state = tmp_path_factory.mktemp("state")
    made = twinkle("keys", "create", "--state", state, "--tenant", "alice")
    names = ["--name", "made-up/name", "--name", "made-up/name/variant"]
    it = Server(tiny_llama_dir, state, *names)
    it.key = made.stdout.strip()
    yield it
    assert it.stop() == 0


def run(script, home, server, *arguments):
    """A process that knows no hub but the server, with nothing in its cache."""
    offline = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HF_HUB_CACHE"}
    kept = {key: value for key, value in os.environ.items() if key not in offline}
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={
            **kept, "HF_HOME": str(home), "HF_ENDPOINT": server.url + "/hf",
            "HF_TOKEN": server.key, "TINKER_TELEMETRY": "0",
        },
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_transformers_loads_the_tokenizer_of_a_made_up_name(named, tiny_llama_dir, tmp_path):
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(tiny_llama_dir)
    expected = [
        own(TEXT)["input_ids"],
        own.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False),
    ]
    assert run(LOAD, tmp_path, named, TEXT, "tiny", "made-up/name") == [expected, expected]


def test_the_sdk_gives_the_tokenizer_of_every_served_name(named, tiny_llama_dir, tmp_path):
    from transformers import AutoTokenizer

    pytest.importorskip("tinker")
    expected = AutoTokenizer.from_pretrained(tiny_llama_dir)(TEXT)["input_ids"]
    name = "made-up/name/variant"
    found = run(ASK_THE_SDK, tmp_path, named, name, TEXT, named.url)
    assert found == [expected, expected]


def test_a_file_is_told_of_without_its_bytes(named, tiny_llama_dir):
    url = f"{named.url}/hf/made-up/name/resolve/main/tokenizer.json"
    key = {"Authorization": f"Bearer {named.key}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=key, method="HEAD")) as told:
        assert told.read() == b""
        size = (Path(tiny_llama_dir) / "tokenizer.json").stat().st_size
        assert int(told.headers["Content-Length"]) == size
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url)
