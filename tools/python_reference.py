"""Writes docs/python.md from the docstrings of public names: python_reference.py [--check].

A public name is one of `__all__` of `twinkle`, of a package in it, or of `twinkle_client`. With
--check it writes nothing and exits with 1 if the page is another. Where the package is not
installed, there is nothing to compare with.
"""

import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/python.md"
CLIENT = ("", ".model", ".sampler")  # modules of twinkle_client
HEAD = """# Python

Made by `tools/python_reference.py` from the docstrings. Each name is listed with the module that
scripts import it from; `twinkle.NAME` and the module's own name are one object.
"""


def packages(twinkle):
    """`twinkle`, the packages in it that name what they export, by name, and its client."""
    found = [m.name for m in pkgutil.iter_modules(twinkle.__path__, "twinkle.") if m.ispkg]
    found = [name for name in found if name != "twinkle.server"]  # its names are refused
    found = ["twinkle", *sorted(found), *(f"twinkle_client{name}" for name in CLIENT)]
    modules = [importlib.import_module(name) for name in found]
    return [module for module in modules if hasattr(module, "__all__")]


def signature(value):
    try:
        return re.sub(r"<function (\w+) at 0x\w+>", r"\1", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return ""


def text(value):
    return inspect.cleandoc(value.__doc__ or "")


def methods(cls, public):
    """Public methods and properties, of the class and of its bases that have no entry."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("twinkle")]
    names = {name for base in ours if base is cls or base not in public for name in vars(base)}
    for name in sorted(names):
        if name.startswith("_") and name != "__call__":
            continue
        value = inspect.getattr_static(cls, name)
        if callable(getattr(cls, name)) or isinstance(value, property):
            yield name, getattr(cls, name)


def entry(name, value, public):
    """Lines of one name. public: all classes that have an entry."""
    kind = "class " if inspect.isclass(value) else ""
    if inspect.ismodule(value):
        return [f"### `{name}`", "", text(value), ""]
    if not (inspect.isclass(value) or callable(value)):
        return [f"### `{name}`", "", f"A value: `{value!r}`.", ""] if isinstance(value, str) else []
    lines = [f"### {kind}`{name}{signature(value)}`", "", text(value), ""]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        bases = [base.__name__ for base in value.__bases__ if base in public]
        lines += [f"As {' and '.join(bases)}, and:", ""] if bases else []
        for method, function in methods(value, public):
            called = "" if isinstance(function, property) else signature(function)
            first, *rest = text(function).split("\n") if text(function) else [""]
            lines += [f"- `{method}{called}`: {first}", *(f"  {line}".rstrip() for line in rest)]
        lines.append("")
    return lines


def page(twinkle):
    lines, seen, modules = [HEAD], {}, packages(twinkle)
    values = [getattr(module, name) for module in modules for name in module.__all__]
    public = [value for value in values if inspect.isclass(value)]
    for module in modules:
        lines += [f"## `{module.__name__}`", "", text(module), ""]
        for name in sorted(module.__all__):
            value = getattr(module, name)
            where = seen.setdefault(id(value), f"{module.__name__}.{name}")
            if where != f"{module.__name__}.{name}":
                lines += [f"### `{name}`", "", f"`{where}`.", ""]
            else:
                lines += entry(name, value, public) or [f"### `{name}`", "", f"`{value!r}`.", ""]
    return "\n".join(lines).rstrip() + "\n"


def main():
    try:
        from twinkle import core

        core.core()
        made = page(importlib.import_module("twinkle"))
    except ImportError as error:
        print(f"python_reference: docs/python.md is as it was: {error}")
        return 0
    if sys.argv[1:] == ["--check"]:
        return int(not PAGE.exists() or PAGE.read_text() != made)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
