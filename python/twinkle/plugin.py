"""construct_class() turns what users pass as a class into an object; Plugin asks a hub."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from twinkle.checks import is_on
from twinkle.errors import InvalidError, NotAvailableError, NotFoundError, refuse_unknown, require
from twinkle.hub.models import get


def trust_remote_code():
    """True when code from a hub or a client may run: TWINKLE_TRUST_REMOTE_CODE=1."""
    return is_on("TWINKLE_TRUST_REMOTE_CODE")


def check_unsafe(*args, **kwargs):
    """Refuses callables, classes and plugin ids among the arguments (nested too) in safe mode:
    InvalidError, unless TWINKLE_TRUST_REMOTE_CODE is set."""
    if trust_remote_code():
        return
    for value in [*args, *kwargs.values()]:
        if callable(value) or (isinstance(value, str) and Plugin.is_plugin(value)):
            raise InvalidError(
                f"plugin: {value!r} is code from outside, which runs only with "
                "TWINKLE_TRUST_REMOTE_CODE=1"
            )
        if isinstance(value, (dict, list, tuple, set)):
            check_unsafe(*(value.values() if isinstance(value, dict) else value))


class Plugin:
    """Classes from `ms://owner/repo` or `hf://owner/repo`."""

    @staticmethod
    def is_plugin(name):
        """True for a text that begins with ms:// or hf://."""
        return name.startswith(("ms://", "hf://"))

    @staticmethod
    def load_plugin(plugin_id, base):
        """Downloads the repository, imports its __init__.py, returns the first subclass of `base`
        that it holds: one that it defines, before those that it imports. InvalidError:
        TWINKLE_TRUST_REMOTE_CODE is not set, or it holds none; NotFoundError: it has no
        __init__.py; and what hub.get raises."""
        require(
            trust_remote_code(),
            f"plugin: {plugin_id} is code from a hub, which runs only with "
            "TWINKLE_TRUST_REMOTE_CODE=1",
        )
        file = Path(get(plugin_id)) / "__init__.py"
        if not file.is_file():
            raise NotFoundError(f"plugin: {plugin_id} has no __init__.py at {file}")
        name = "twinkle_plugin_" + re.sub(r"\W", "_", plugin_id)
        spec = importlib.util.spec_from_file_location(name, file)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        values = vars(module).values()
        found = [v for v in values if _is_subclass(v, base) and v is not base]
        require(found, f"plugin: {plugin_id} defines no subclass of {base.__name__}")
        return next((v for v in found if f"{v.__module__}.".startswith(f"{name}.")), found[0])


def construct_class(value, base, modules=(), **init):
    """An instance of `base`.

    value: an instance (then `init` must be empty), a subclass, the name of a class in one of
    `modules`, or a plugin id. InvalidError: another thing or name, an argument of `init` that the
    class does not take, or any for an instance; of a plugin id as Plugin.load_plugin.
    """
    if isinstance(value, base):
        own, given = type(value).__name__, ", ".join(sorted(init))
        require(not init, f"plugin: {own} is an instance already, it cannot take {given}")
        return value
    if isinstance(value, str):
        value = _find_class(value, base, modules)
    must = f"must be a {base.__name__}, a subclass of it, or its name"
    require(_is_subclass(value, base), f"plugin: {value!r} {must}")
    parameters = inspect.signature(value).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        refuse_unknown(f"plugin: {value.__name__}", init, parameters)
    return value(**init)


def _is_subclass(value, base):
    return inspect.isclass(value) and issubclass(value, base)


def _find_class(name, base, modules):
    if Plugin.is_plugin(name):
        return Plugin.load_plugin(name, base)
    modules = modules if isinstance(modules, (list, tuple)) else (modules,)
    for module in modules:
        if _is_subclass(getattr(module, name, None), base):
            return getattr(module, name)
    known = {key for each in modules for key in dir(each) if _is_subclass(getattr(each, key), base)}
    known = ", ".join(sorted(known))
    raise InvalidError(f"plugin: there is no {base.__name__} named {name!r}; there are {known}")


def exists(requirement):
    """True when `requirement` ("peft", "transformers>=4.51") is installed. InvalidError: a text of
    another form."""
    try:
        needed = Requirement(requirement)
    except InvalidRequirement:
        must = 'look like "package" or "package>=1.2"'
        raise InvalidError(f"plugin: {requirement!r} must {must}") from None
    try:
        found = importlib.metadata.version(needed.name)
        return needed.specifier.contains(found, prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        module = importlib.util.find_spec(needed.name.replace("-", "_"))
        return not needed.specifier and module is not None


def requires(requirement, why=""):
    """Raises NotAvailableError with the command to run when `requirement` is not installed."""
    if not exists(requirement):
        needed = f"needed for {why}" if why else "needed"
        raise NotAvailableError(f"twinkle: {requirement} is {needed}: pip install '{requirement}'")
