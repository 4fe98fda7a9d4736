"""`import twinkle` and what it exports."""

import importlib
import os
import re
import subprocess
import sys
from collections import UserDict
from importlib.metadata import version

import pytest

import twinkle
import twinkle.loss
from twinkle.errors import NotAvailableError


def test_importing_twinkle_loads_no_heavy_package():
    code = (
        "import sys, twinkle; twinkle.initialize; twinkle.get_logger(); "
        "heavy = {'torch', 'peft', 'transformers', 'ray', 'datasets', 'twinkle._core'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "name", "data_format dataloader dataset engine loss metric model preprocessor processor "
    "sampler template".split()
)  # fmt: skip
def test_a_module_loads_what_it_uses_and_no_more(name):
    """torch is loaded where tensors are met; transformers, peft and datasets never."""
    code = (
        f"import sys, twinkle.{name}; "
        "print(sorted({'peft', 'transformers', 'ray', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


FIRST_IMPORTS = """
import importlib, sys
from pathlib import Path
import torch, twinkle

root, kept = Path(twinkle.__file__).parent, set(sys.modules)
for path in sorted(root.rglob("*.py")):
    name = ".".join(["twinkle", *path.relative_to(root).with_suffix("").parts])
    for other in [each for each in sys.modules if each.startswith("twinkle.")]:
        if other not in kept:
            del sys.modules[other]
    try:
        importlib.import_module(name.removesuffix(".__init__"))
    except twinkle.NotAvailableError:
        pass  # a package of later versions
    except ImportError as error:
        print(f"{name}: {error}")
print("all")
"""


def test_every_module_can_be_the_first_that_is_imported():
    """So no two need each other."""
    out = subprocess.run([sys.executable, "-c", FIRST_IMPORTS], capture_output=True, text=True)
    assert out.stdout == "all\n", out.stdout + out.stderr


@pytest.mark.parametrize("name", sorted(set(twinkle.__all__)))
def test_every_export_exists(name):
    assert getattr(twinkle, name) is not None


def test_a_namesake_that_is_installed_is_named_at_import(tmp_path):
    kit = tmp_path / "twinkle_kit-0.5.1.dist-info"
    kit.mkdir()
    (kit / "METADATA").write_text("Metadata-Version: 2.1\nName: twinkle-kit\nVersion: 0.5.1\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import twinkle"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "the package twinkle-kit 0.5.1 is installed here, too, and both are" in run.stderr


@pytest.mark.parametrize(
    ("module", "name"),
    [("twinkle.server", "launch_server")],
)
def test_names_of_later_versions_say_what_they_need_and_what_there_is(module, name):
    with pytest.raises(
        ImportError, match=f"{module}: {name} needs .*twinkle serve.*this version does not have"
    ):
        getattr(importlib.import_module(module), name)


def test_packages_are_reached_without_an_import_of_their_own():
    code = (
        "import twinkle; print(twinkle.loss.GRPOLoss.__name__, twinkle.dataset.Dataset is "
        "twinkle.Dataset, twinkle.TransformersModel.__name__, twinkle.hub.SMOLLM2)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert out.stdout.split() == ["GRPOLoss", "True", "TransformersModel", name]


@pytest.mark.parametrize("module", ["twinkle_client.processor"])
def test_packages_of_later_versions_say_what_they_need(module):
    with pytest.raises(NotAvailableError, match=r"this \w+ needs .*this version does not have"):
        importlib.import_module(module)


# Names that ModelScope's Twinkle has, by module; each says what it waits for.
LATER = {
    "patch": "GatedDeltaNetPaddingFreePatch MegatronEmbeddingPatch MegatronPeft "
    "Qwen3AllowToolTailTemplate Qwen3ChatTemplate TransformersEmbeddingPatch "
    "TransformersFusedCEPatch VLLMLoraWeights VLLMMoEWeights",
    "template": "DeepseekV4Template Gemma4Template Qwen2_5VLTemplate",
}


@pytest.mark.parametrize(
    ("module", "name"), [(m, name) for m, names in LATER.items() for name in names.split()]
)
def test_names_of_the_documents_that_are_not_there_say_why(module, name):
    module = importlib.import_module(f"twinkle.{module}")
    with pytest.raises(ImportError, match=f"{name} needs .*, which this version does not have"):
        getattr(module, name)
    assert name not in module.__all__
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = module.Nonsense


def test_a_class_that_is_not_there_says_why_where_it_is_asked_for_by_name():
    with pytest.raises(ImportError, match="MegatronPeft needs Megatron, which"):
        twinkle.construct_class("MegatronPeft", twinkle.patch.Patch, twinkle.patch)


def test_the_release_has_a_version_and_a_time():
    from datetime import datetime

    assert twinkle.__version__ == version("twinkle-llm")
    assert datetime.strptime(twinkle.__release_datetime__, "%Y-%m-%d %H:%M:%S")


def test_the_tensor_functions_equal_torchs():
    import torch

    logits = torch.randn(3, 4, 50, dtype=torch.bfloat16)
    index = torch.randint(50, (3, 4))
    expected = logits.float().log_softmax(-1).gather(-1, index[..., None])[..., 0]
    torch.testing.assert_close(twinkle.torch_util.selective_log_softmax(logits, index), expected)
    nested = {"a": [torch.zeros(2), (torch.ones(1), "text")], "b": None}
    moved = twinkle.torch_util.to_device(nested, "meta")
    assert moved["a"][0].device.type == moved["a"][1][0].device.type == "meta"
    assert moved["a"][1][1] == "text" and moved["b"] is None
    assert nested["a"][0].device.type == "cpu"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = twinkle.nonsense


def test_exists_compares_versions():
    assert twinkle.exists("numpy")
    assert twinkle.exists("numpy>=1.0")
    assert not twinkle.exists("numpy>=99")
    assert not twinkle.exists("no-such-package")
    assert not twinkle.exists("no-such-package>=1")
    assert twinkle.exists(f"numpy~={version('numpy')}") and not twinkle.exists("numpy~=0.1")


@pytest.mark.parametrize("requirement", ["numpy 1.0", "numpy>=", "numpy~1.0", "", "a b"])
def test_a_requirement_of_another_form_is_named(requirement):
    text = f'{requirement!r} must look like "package" or "package>=1.2"'
    with pytest.raises(twinkle.InvalidError, match=re.escape(text)):
        twinkle.exists(requirement)


def test_requires_says_how_to_install():
    twinkle.requires("numpy")
    with pytest.raises(ImportError, match=r"no-such-package is needed for x: pip install"):
        twinkle.requires("no-such-package", "x")


def test_code_from_outside_is_refused_unless_switched_on(monkeypatch):
    monkeypatch.delenv("TWINKLE_TRUST_REMOTE_CODE", raising=False)
    assert not twinkle.trust_remote_code()
    twinkle.check_unsafe("text", 1, [2, {"a": 3}])
    for value in (print, [int], {"a": "ms://owner/repo"}):
        with pytest.raises(twinkle.InvalidError, match="runs only with"):
            twinkle.check_unsafe(value)
    with pytest.raises(twinkle.InvalidError, match="code from a hub"):
        twinkle.Plugin.load_plugin("ms://owner/repo", object)
    monkeypatch.setenv("TWINKLE_TRUST_REMOTE_CODE", "1")
    twinkle.check_unsafe(print)
    monkeypatch.setenv("TWINKLE_TRUST_REMOTE_CODE", "0")
    assert not twinkle.trust_remote_code()


def test_a_plugin_without_the_class_that_is_asked_for_is_named(monkeypatch, tmp_path):
    (tmp_path / "__init__.py").write_text("class Other:\n    pass\n")
    monkeypatch.setenv("TWINKLE_TRUST_REMOTE_CODE", "1")
    monkeypatch.setenv("TWINKLE_MODEL_ID_ALIASES", f"owner/repo={tmp_path}")
    with pytest.raises(
        twinkle.InvalidError, match="ms://owner/repo defines no subclass of UserDict"
    ):
        twinkle.Plugin.load_plugin("ms://owner/repo", UserDict)
    (tmp_path / "__init__.py").write_text(
        "from collections import UserDict\n\n\nclass Mine(UserDict):\n    pass\n"
    )
    assert twinkle.Plugin.load_plugin("ms://owner/repo", UserDict).__name__ == "Mine"
    (tmp_path / "__init__.py").unlink()
    with pytest.raises(
        twinkle.NotFoundError, match=r"ms://owner/repo has no __init__\.py at .*__init__\.py"
    ):
        twinkle.Plugin.load_plugin("ms://owner/repo", UserDict)


@pytest.mark.parametrize("where", ["__init__", "mine"])
def test_a_plugins_own_class_comes_before_those_that_it_imports(monkeypatch, tmp_path, where):
    monkeypatch.setenv("TWINKLE_TRUST_REMOTE_CODE", "1")
    monkeypatch.setenv("TWINKLE_MODEL_ID_ALIASES", f"owner/{where}={tmp_path}")
    first = "from twinkle.loss import CrossEntropyLoss\n"
    (tmp_path / "__init__.py").write_text(f"{first}from .mine import Mine\n")
    (tmp_path / f"{where}.py").write_text(f"{first}class Mine(CrossEntropyLoss):\n    pass\n")
    found = twinkle.Plugin.load_plugin(f"ms://owner/{where}", twinkle.loss.Loss)
    assert found.__name__ == "Mine"
    (tmp_path / "__init__.py").write_text(first)
    found = twinkle.Plugin.load_plugin(f"ms://owner/{where}", twinkle.loss.Loss)
    assert found is twinkle.loss.CrossEntropyLoss


@pytest.mark.parametrize("found", ["2.10.1", "2.110.0", None])
def test_another_torch_than_the_engines_is_named(monkeypatch, found):
    core = importlib.import_module("twinkle.core")

    def version(name):
        if found is None:
            raise core.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(core, "version", version)
    monkeypatch.delitem(sys.modules, "twinkle._core", raising=False)  # as before it is loaded
    text = f"built for torch 2.11, but torch is {found or 'missing'}: pip install 'torch==2.11"
    with pytest.raises(NotAvailableError, match=text):
        core.core()


class Base:
    pass


class Child(Base):
    def __init__(self, size=1):
        self.size = size


def test_construct_class_takes_instance_class_and_name():
    module = sys.modules[__name__]
    one = Child()
    assert twinkle.construct_class(one, Base) is one
    assert twinkle.construct_class(Child, Base, size=2).size == 2
    assert twinkle.construct_class("Child", Base, module, size=3).size == 3


@pytest.mark.parametrize(
    ("value", "init", "text"),
    [
        ("Nobody", {}, "no Base named 'Nobody'; there are Base, Child"),
        (3, {}, "must be a Base"),
        (dict, {}, "must be a Base"),
        (Child, {"colour": 1}, "Child: unknown argument 'colour'; it takes size"),
        (Child(), {"size": 1}, "Child is an instance already, it cannot take size"),
    ],
)
def test_construct_class_names_what_is_wrong(value, init, text):
    with pytest.raises(twinkle.InvalidError, match=text):
        twinkle.construct_class(value, Base, sys.modules[__name__], **init)


def test_free_port_can_be_bound():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", twinkle.find_free_port()))
    assert twinkle.find_node_ip().count(".") == 3


def test_logger_writes_to_a_file_and_once(tmp_path):
    logger = twinkle.get_logger(log_file=str(tmp_path / "log.txt"))
    logger.info("hello %s", "there", ranks="all")
    logger.info_once("only once")
    logger.info_once("only once")
    logger.warning_if("never", False)
    text = (tmp_path / "log.txt").read_text()
    assert "hello there" in text and text.count("only once") == 1 and "never" not in text
    logger.removeHandler(logger.handlers[-1])


def test_a_level_is_a_name_in_any_case_or_a_number(tmp_path):
    logger = twinkle.get_logger()
    before = logger.level
    for level, number in (("debug", 10), ("WARNING", 30), (15, 15)):
        assert twinkle.get_logger(log_level=level).level == number
    for level, text in (
        ("LOUD", "log_level is 'LOUD', it must be a number, or one of .*INFO"),
        (True, "log_level is True, it must be an integer of at least 0"),
        ([1], r"log_level is \[1\], it must be an integer"),
    ):
        with pytest.raises(twinkle.InvalidError, match=text):
            twinkle.get_logger(log_file=str(tmp_path / "log.txt"), log_level=level)
    assert logger.level == 15 and not list(tmp_path.iterdir())
    logger.setLevel(before)


def test_a_wrong_level_in_the_environment_is_named():
    run = subprocess.run(
        [sys.executable, "-c", "import twinkle; twinkle.get_logger()"],
        env={**os.environ, "LOG_LEVEL": "LOUD"},
        capture_output=True,
        text=True,
    )
    assert "InvalidError: logger: LOG_LEVEL is 'LOUD', it must be a number, or one" in run.stderr
