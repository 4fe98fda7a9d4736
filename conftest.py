"""Fixtures of python/tests and tests: a tiny random model, the built-in model, real data."""

import os
import signal
import sys
from pathlib import Path

import pytest

# Engines of tests run on the CPU, where a GPU is too, unless a test or TWINKLE_DEVICE says more.
os.environ.setdefault("TWINKLE_DEVICE", "cpu")


# Where most tests start programs and wait for them: `make test-fast` leaves these out, and of the
# others each that starts one.
PROCESSES = (
    *("bench", "export", "fuzz", "parallel", "ray", "service", "test_demo.py"),
    *("test_finetune_example.py", "test_gpu_stages.py", "test_guarded.py", "test_lint.py"),
    *("test_make.py", "test_operating.py", "test_package.py", "test_presets.py", "test_readme.py"),
    *("test_rebuild.py", "test_soak.py"),
)
PROCESSES_OF_PYTHON = ("refusals/test_killed_while_saving.py", "scripts")


def pytest_configure(config):
    # A run that was started with interrupts ignored, as by `nohup make test &`, has them in its
    # tests and, since a handler is no inheritance, in what they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "not processes" in config.option.markexpr:
        sys.addaudithook(skip_at_a_process)


def skip_at_a_process(event, arguments):
    if event != "subprocess.Popen" or "PYTEST_CURRENT_TEST" not in os.environ:
        return  # xdist's own, for one: no test runs
    if Path(os.fsdecode(arguments[0])).name != "git":
        pytest.skip("it starts a process")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With --dist loadfile: those of tests/ray go to one process, which has one cluster."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "tests/ray" if file.startswith("tests/ray/") else file

    return Scheduling(config, log)


# Those of one process take the longest of all, so that it begins with them. Programs under
# sanitizers are compiled while tests wait (scripts/test.sh): their tests come late, but not last,
# where little would be left to run beside them.
ORDER = {"tests/ray/": 0, "tests/test_presets.py": 2, "tests/fuzz/guided/": 2, "python/": 3}


def pytest_collection_modifyitems(items):
    starting = (
        *(f"tests/{name}" for name in PROCESSES),
        *(f"python/tests/{name}" for name in PROCESSES_OF_PYTHON),
    )
    for item in items:
        if item.nodeid.startswith(starting):
            item.add_marker(pytest.mark.processes)
    items.sort(
        key=lambda item: next((at for of, at in ORDER.items() if item.nodeid.startswith(of)), 1)
    )


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer():
    """A byte-level BPE of a few hundred tokens with a ChatML template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "Hello! I am a helpful assistant. Who are you? What is your name? user assistant system"
    bpe.train_from_iterator([text] * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        bos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory):
    """A directory with a llama (2 layers, width 64, random bfloat16 weights) and a tokenizer."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("tiny-llama")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(directory)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    torch.manual_seed(20260301)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="session")
def smollm2_dir():
    """The directory of the built-in model; skips without its package."""
    from twinkle import hub
    from twinkle.errors import NotAvailableError

    try:
        return hub.get("smollm2")
    except NotAvailableError as error:
        pytest.skip(str(error))


class DataDirectory:
    """`directory / name`: the path of a file of real data. A test of one that is missing skips."""

    def __init__(self, path):
        self._path = Path(path)

    def __truediv__(self, name):
        file = self._path / name
        if not file.is_file():
            pytest.skip(f"the folder that TWINKLE_TEST_DATA names has no {name}")
        return file


@pytest.fixture(scope="session")
def data_dir():
    """Real data sets, from TWINKLE_TEST_DATA: a DataDirectory."""
    directory = os.environ.get("TWINKLE_TEST_DATA")
    if not directory:
        pytest.skip("TWINKLE_TEST_DATA is not set: it names the folder of real data sets")
    return DataDirectory(directory)
