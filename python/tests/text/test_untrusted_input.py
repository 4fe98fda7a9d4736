"""Rows and chat templates that try to end the process or to keep it for ever."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from twinkle.errors import InvalidError

core = pytest.importorskip("twinkle._core")


def deep(levels, wrap):
    value = []
    for _ in range(levels):
        value = wrap(value)
    return value


def cyclic_list():
    value = []
    value.append(value)
    return value


def cyclic_dict():
    value = {}
    value["a"] = value
    return value


class ListOfItself:
    def tolist(self):
        return self


def doubled(times):
    value = ["x" * 100]
    for _ in range(times):
        value = [value, value]
    return value


DEEPER = "is nested deeper than 128 levels: does it contain itself?"


def message(value):
    return {"messages": [{"role": "user", "content": "x", "q": value}]}


@pytest.fixture(scope="module")
def encoder(smollm2_dir):
    return core.Template(str(smollm2_dir))


@pytest.mark.parametrize(
    "value",
    [deep(100_000, lambda x: [x]), deep(129, lambda x: {"a": x}), cyclic_list(), cyclic_dict(),
     ListOfItself()],
    ids=["list", "dict", "cyclic list", "cyclic dict", "tolist"],
)  # fmt: skip
def test_what_nests_without_an_end_is_refused_with_its_place(encoder, value):
    place = r"text: messages\[0\]\.q " + DEEPER.replace("?", r"\?")
    for work in (encoder.encode, encoder.render, encoder.why_not):
        with pytest.raises(InvalidError, match=place):
            work(message(value))
    with pytest.raises(InvalidError, match=r"text: row 1: messages\[0\]\.q is nested"):
        encoder.batch_encode([message(1), message(value)])
    with pytest.raises(InvalidError, match=r"text: tools\[0\]\S* is nested"):
        encoder.encode({**message(1), "tools": [value]})
    with pytest.raises(InvalidError, match="is nested deeper"):
        core.Dataset.of([{"a": value}])


def test_what_is_shared_without_an_end_is_refused(encoder):
    with pytest.raises(InvalidError, match=r"messages\[0\]\.q is larger than 256 MiB as JSON"):
        encoder.encode(message(doubled(60)))


def test_a_hundred_levels_are_read(encoder):
    assert encoder.render(message(deep(100, lambda x: [x])))
    row = {"a": deep(120, lambda x: {"b": x}), "c": np.ones((2, 2))}
    assert core.Dataset.of([row]).rows(0, 1)[0]["c"] == [[1, 1], [1, 1]]


@pytest.fixture
def endless(smollm2_dir, tmp_path):
    """A template that takes seconds where a conversation says go."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(smollm2_dir) / name, tmp_path)
    loop = "{% for a in range(9999) %}{% for b in range(999) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content == 'go' %}" + loop * 9 + "{% endif %}x"
    (tmp_path / "chat_template.jinja").write_text(source)
    return core.Template(str(tmp_path))


GO = {"messages": [{"role": "user", "content": "go"}]}
# The limit of steps grows with the conversation: with this one the template takes its time.
LONG = {"messages": [*GO["messages"], {"role": "user", "content": "x" * 1_000_000}]}


@pytest.mark.parametrize(
    "work",
    [
        lambda template: template.render(LONG),
        lambda template: template.encode(LONG),
        lambda template: template.check(LONG),
        lambda template: template.batch_encode([LONG] * 3),
        lambda template: core.Dataset.of([LONG] * 33).encode(template),
    ],
    ids=["render", "encode", "check", "batch_encode", "Dataset.encode"],
)
def test_ctrl_c_ends_a_template(endless, work):
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        work(endless)
        time.sleep(1)
    assert time.perf_counter() - start < 10
    assert endless.render({"messages": [{"role": "user", "content": "hi"}]}) == "x"


def test_other_threads_run_while_a_template_renders(endless):
    ticks = []
    done = threading.Event()

    def tick():
        while not done.wait(0.005):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        with pytest.raises(InvalidError, match="too many steps"):
            endless.render(GO)
    finally:
        done.set()
        thread.join()
    assert len(ticks) > 3


def test_a_template_that_never_ends_is_refused(endless):
    with pytest.raises(InvalidError, match="the chat template failed: it takes too many steps"):
        endless.encode(GO)
    assert "too many steps" in endless.why_not(GO)
