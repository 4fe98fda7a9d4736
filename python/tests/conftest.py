"""Fixtures: what skips without the compiled engine, and a fake of it."""

import importlib.util
import logging
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def engine_built():
    """Skips when the compiled engine is not there."""
    from twinkle.core import core
    from twinkle.errors import NotAvailableError

    try:
        if not hasattr(core(), "Engine"):
            pytest.skip("twinkle._core has no Engine")
    except NotAvailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def fake_core(monkeypatch):
    """twinkle._core replaced by a bigram model in plain torch, whose every result is known."""
    import twinkle

    file = Path(__file__).with_name("fake_core.py")
    spec = importlib.util.spec_from_file_location("twinkle_fake_core", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "twinkle._core", module)
    monkeypatch.setattr(twinkle, "_core", module, raising=False)
    return module


@pytest.fixture(scope="session")
def data_built():
    """Skips where the compiled data sets are not there."""
    from twinkle.core import core
    from twinkle.errors import NotAvailableError

    try:
        if not hasattr(core(), "Loader"):
            pytest.skip("twinkle._core has no data")
    except NotAvailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def logged():
    """The texts that go to the logger `twinkle` meanwhile."""
    from twinkle import get_logger

    texts, handler = [], logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())
    get_logger().addHandler(handler)
    yield texts
    get_logger().removeHandler(handler)


@pytest.fixture
def model(fake_core, tmp_path):
    """A model over the fake engine."""
    from twinkle.model import TransformersModel

    return TransformersModel(model_id=str(tmp_path))


@pytest.fixture
def adapted(model):
    """adapted(**options): the model with one adapter."""
    from twinkle import LoraConfig

    def make(**kwargs):
        model.add_adapter_to_model("default", LoraConfig(r=2), **kwargs)
        return model

    return make
