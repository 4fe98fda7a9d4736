"""An engine on a tiny model, and a tenant with an adapter, for one test."""

import pytest
from engine_batches import LORA

from twinkle.engine import Engine


@pytest.fixture(scope="module")
def engine(engine_built, tiny_llama_dir):
    return Engine(tiny_llama_dir)


@pytest.fixture
def tenant(engine, request):
    tenant = engine.tenant(request.node.name, LORA, seed=3)
    yield tenant
    tenant.delete().result()
