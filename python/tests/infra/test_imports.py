"""Modules of the package import each other in one direction, and at their top."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "twinkle"


def modules(package):
    """{dotted name: syntax tree} of a package's modules."""
    out = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        out[name] = ast.parse(path.read_text())
    return out


def own_imports(tree, known):
    """[(module, line, whether in a function)] of the package's own modules that a tree imports."""
    out = []

    def visit(node, in_function):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            names = []
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom) and child.module:
                of_names = [f"{child.module}.{alias.name}" for alias in child.names]
                names = [name if name in known else child.module for name in of_names]
            out.extend((name, child.lineno, in_function) for name in names if name in known)
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            visit(child, in_function or is_function)

    visit(tree, in_function=False)
    return sorted(set(out))


def arrows(trees):
    """{module: those that run to their end before it does}. Who imports a.b.c runs a and a.b, but
    its own packages have begun already."""
    out = {}
    for name, tree in trees.items():
        found = set()
        for other, _, in_function in own_imports(tree, trees):
            parts = other.split(".")
            if not in_function:
                found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
        out[name] = {other for other in found if not f"{name}.".startswith(f"{other}.")}
    return out


def cycles(arrows):
    """Sorted lists of modules that all reach each other."""
    reached = {name: set(others) for name, others in arrows.items()}
    for middle in reached:
        for others in reached.values():
            if middle in others:
                others.update(reached[middle])
    found = {
        tuple(sorted(other for other in others if name in reached[other]))
        for name, others in reached.items()
        if name in others
    }
    return [list(each) for each in sorted(found)]


def test_no_modules_import_each_other():
    found = cycles(arrows(modules(PACKAGE)))
    assert not found, "\n".join(" <-> ".join(each) for each in found)


def test_no_function_imports_a_module_of_its_own_package():
    trees = modules(PACKAGE)
    found = [
        f"{name}:{line} imports {other}"
        for name, tree in trees.items()
        for other, line, in_function in own_imports(tree, trees)
        if in_function
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"a": "import p.b", "b": "import p.c", "c": ""}, []),
        ({"a": "import p.b", "b": "from p import c", "c": "from p.a import x"}, [["a", "b", "c"]]),
        ({"a": "import p.b", "b": "def f():\n    import p.a"}, []),
        ({"d/__init__": "from p.d.x import y", "d/x": "import p.a", "a": "import p.d.z", "d/z": ""},
         [["a", "d", "d.x"]]),
        ({"d/__init__": "from p.d.x import y", "d/x": "from p.d import z", "d/z": ""}, []),
    ],
)  # fmt: skip
def test_cycles_are_found_through_packages(files, found, tmp_path):
    package = tmp_path / "p"
    (package / "d").mkdir(parents=True)
    for name, text in {"__init__": "", "d/__init__": "", **files}.items():
        (package / f"{name}.py").write_text(text)
    told = [[name.removeprefix("p.") for name in each] for each in cycles(arrows(modules(package)))]
    assert told == found
