"""Every definition of a public module has a docstring that names its refusals."""

import ast
import importlib
import inspect
import pkgutil
import re

import pytest

import twinkle

MODULES = sorted(
    ["twinkle"]
    + [
        found.name
        for found in pkgutil.walk_packages(twinkle.__path__, "twinkle.")
        if not any(part.startswith("_") for part in found.name.split("."))
        and found.name != "twinkle.server"  # its import says that there is none yet
        and found.name != "twinkle.libtwinkle_cuda"  # a library, no module
    ]
)
NOT_REFUSALS = ("NotImplementedError", "AttributeError")  # abstract methods, and missing parts


def is_public(name):
    return not name.startswith("_") or name == "__call__"


def has_text(value):
    return bool((getattr(value, "__doc__", None) or "").strip())


def is_written(cls):
    """dataclasses writes a docstring where there is none: the signature."""
    return has_text(cls) and not cls.__doc__.startswith(f"{cls.__name__}(")


def undocumented(module):
    """Names of what the module exports, or else defines, that says nothing. A method may be
    documented where a base class defines it."""
    names = getattr(module, "__all__", None)
    names = [name for name in vars(module) if is_public(name)] if names is None else names
    missing = [] if has_text(module) else [module.__name__]
    for name in names:
        value = getattr(module, name)
        if not str(getattr(value, "__module__", "")).startswith("twinkle"):
            continue
        if inspect.isclass(value):
            missing += [] if is_written(value) else [f"{module.__name__}.{name}"]
            missing += [f"{module.__name__}.{name}.{method}" for method in silent_methods(value)]
        elif callable(value) and not has_text(value):
            missing.append(f"{module.__name__}.{name}")
    return missing


def silent_methods(cls):
    ours = [base for base in cls.__mro__ if base.__module__.startswith("twinkle")]
    names = {name for base in ours for name in vars(base) if is_public(name)}
    kinds = (property, staticmethod, classmethod)
    for name in sorted(names):
        found = [vars(base)[name] for base in ours if name in vars(base)]
        told = any(map(has_text, found))
        if not told and (inspect.isroutine(found[0]) or isinstance(found[0], kinds)):
            yield name


@pytest.mark.parametrize("module", MODULES)
def test_everything_public_has_a_docstring(module):
    assert undocumented(importlib.import_module(module)) == []


def test_the_walk_meets_modules_and_would_see_what_says_nothing():
    assert {"twinkle.loss.base", "twinkle.engine.tenant", "twinkle.data_format"} <= set(MODULES)

    class Silent:
        """With a method that is documented, and two that are not."""

        def told(self):
            """Says something."""

        def silent(self):
            pass

        @property
        def bare(self):
            pass

    Silent.__module__ = "twinkle.invented"
    assert list(silent_methods(Silent)) == ["bare", "silent"]


# ---- which error comes when


def name_of(node):
    """'a' of the syntax a, b.a and a(...)."""
    node = node.func if isinstance(node, ast.Call) else node
    return getattr(node, "id", getattr(node, "attr", ""))


def is_refusal(node):
    """True if a piece of syntax raises an error, or calls a check that does."""
    if isinstance(node, ast.Raise) and node.exc is not None:
        name = name_of(node.exc)
        return name.endswith("Error") and name not in NOT_REFUSALS
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        return name_of(node.func.value) == "checks"
    return name_of(node) in ("require", "refuse_unknown")


def names_an_error(*nodes):
    """True if one of the docstrings has a name such as InvalidError."""
    return any(re.search(r"\b[A-Z]\w*Error\b", ast.get_docstring(node) or "") for node in nodes)


def is_quiet(function, *classes):
    """True if it refuses something, and neither it nor `classes`, its own, name an error."""
    return any(map(is_refusal, ast.walk(function))) and not names_an_error(function, *classes)


def quiet_refusals(body, path, *classes):
    """Names of the public functions and methods of a body of code that are quiet."""
    for node in body:
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            yield from quiet_refusals(node.body, f"{path}.{node.name}", node)
        named = isinstance(node, ast.FunctionDef) and re.match("__|[^_]", node.name)
        if named and is_quiet(node, *classes):
            yield f"{path}.{node.name}"


@pytest.mark.parametrize("module", MODULES)
def test_what_refuses_something_says_which_error_comes_when(module):
    source = inspect.getsource(importlib.import_module(module))
    assert list(quiet_refusals(ast.parse(source).body, module)) == []


REFUSING = '''
def checked(n):
    """A number."""
    return checks.integer("n", n)

def required(n):
    require(n, "n is 0")

def told(n):
    """A number. InvalidError: below 1."""
    require(n > 0)

def harmless(n):
    """A number."""
    return later(n, checks)

def _hidden(n):
    raise InvalidError(n)

class Told:
    """A class. NotFoundError: no such n."""
    def __init__(self, n):
        raise NotFoundError(n)

class Silent:
    """An Error without a name."""
    def __init__(self, n):
        raise errors.NotFoundError
    def abstract(self):
        """A number."""
        raise NotImplementedError("n")
    def told(self, n, **kwargs):
        """KeyError: any other n."""
        refuse_unknown("told", kwargs)
'''


def test_the_walk_would_see_a_refusal_of_which_nothing_is_said():
    found = list(quiet_refusals(ast.parse(REFUSING).body, "m"))
    assert found == ["m.checked", "m.required", "m.Silent.__init__"]
