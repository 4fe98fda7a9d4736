"""Writes the table of docs/models.md: families_table.py [--check], in the environment that runs
the tests. Its rows are the registry's (twinkle/model/families/families.def), its cells what the
tests of tests/parity/families are parametrised with. With --check it writes nothing and exits with
1 if the table is another."""

import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/models.md"
# Its device test trains and samples llama, and others by name.
ON_DEVICE = ROOT / "twinkle/engine/engine_cuda_test.cpp"
BEGIN, END = "<!-- written by tools/families_table.py -->\n", "<!-- end -->\n"
SAME, READ = "transformers reads them", "read here"
PEFT, MERGED = "peft, both ways", "merged into the weights"
# For each column the text of a cell, by the first of these tests that has the family. A test is
# its module and how its name begins.
COLUMNS = {
    "float32: log-probabilities, gradients, greedy text": {
        "families.test_every_weights_gradient_equals": "yes"
    },
    "bfloat16": {"bfloat16.test_log_probabilities_are_no_farther": "yes"},
    "full saves": {
        "families.test_what_learned_and_was_saved": SAME,
        "delta.test_a_full_save_is_read": SAME,
        "families.test_a_model_that_learned_is_saved": READ,
    },
    "adapters": {
        "families.test_adapters_of_peft_are_read": PEFT,
        "experts.test_stacked_adapters_of_peft_are_read": PEFT,
        "delta.test_an_adapter_of_the_text_class_is_read": PEFT,
        "families.test_an_adapter_says_what_the_weights": MERGED,
    },
    "tenants alone and among others": {"families.test_tenants_have_the_same_bits": "same bits"},
    "cuts, forks, prefixes, preemption, parking": {
        "schedules.test_cuts_forks_prefixes_and_preemption": "same bits"
    },
    "bad files": {"bad_files.test_a_missing_a_surplus_and_a_misshapen": "refused"},
}


def recipes_of(test):
    """The recipes that a test is parametrised with."""
    of, beginning = test.split(".")
    module = importlib.import_module(f"parity.families.test_{of}")
    (function,) = (value for name, value in vars(module).items() if name.startswith(beginning))
    return {
        recipe
        for mark in function.pytestmark
        if mark.name == "parametrize" and mark.args[0] == "name"
        for recipe in mark.args[1]
    }


def emulated():
    """The families that train and sample on the emulated device as on the CPU."""
    (names,) = re.findall(r"FamilyOnDevice,\s*testing::Values\(([^)]*)\)", ON_DEVICE.read_text())
    return {"llama", *re.findall(r'"(\w+)"', names)}


def gpu(kind, families):
    if kind in families.on_cpu_alone():
        return "refused by name"
    return "kernels emulated" if kind in emulated() else "no"


def table():
    sys.path.insert(0, str(ROOT / "tests"))
    families = importlib.import_module("parity.families.recipes")
    tested = {test: recipes_of(test) for column in COLUMNS.values() for test in column}
    heads = ["`model_type`", *COLUMNS, "GPU"]
    lines = [heads, ["---"] * len(heads)]
    for kind in families.model_types():
        recipes = {name for name in families.FAMILIES if families.model_type(name) == kind}
        line = [f"`{kind}`"]
        for column in COLUMNS.values():
            said = [text for test, text in column.items() if recipes and recipes <= tested[test]]
            line.append(said[0] if said else "no")
        lines.append([*line, gpu(kind, families)])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main():
    before, _, rest = PAGE.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    new = table()
    if sys.argv[1:] == ["--check"]:
        return int(old != new)
    PAGE.write_text(before + BEGIN + new + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
