"""The table of docs/models.md is the registry's, and says what tests there are."""

import importlib.util

from parity.families import recipes as families

ROOT = families.REGISTRY.parents[3]


def test_every_family_of_the_registry_has_a_recipe():
    assert {families.model_type(name) for name in families.FAMILIES} == set(families.model_types())


def test_the_table_of_models_is_what_the_tool_writes():
    spec = importlib.util.spec_from_file_location("table", ROOT / "tools/families_table.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    table = tool.BEGIN + tool.table() + tool.END
    assert table in tool.PAGE.read_text(), "run .venv/bin/python tools/families_table.py"
