"""What a public module of twinkle defines says what it is."""

import importlib
import inspect
import pkgutil

import pytest

import twinkle

MODULES = sorted(
    ["twinkle"]
    + [
        found.name
        for found in pkgutil.walk_packages(twinkle.__path__, "twinkle.")
        if not any(part.startswith("_") for part in found.name.split("."))
    ]
)


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
