"""CLI.from_args(): a script's arguments from defaults, .env, the environment, YAML and flags."""

import importlib
import os
import sys
from pathlib import Path

from twinkle.cli.arguments import Args, field_of, guessed, is_boolean_word, typed
from twinkle.cli.table import ALIASES, GROUPS, Field
from twinkle.errors import InvalidError, NotAvailableError, NotFoundError, require
from twinkle.without_effect import WITHOUT_EFFECT

_PREFIX = "TWINKLE_"
_INERT = WITHOUT_EFFECT["CLI.from_args"]


class CLI:
    """The arguments that all scripts take."""

    @staticmethod
    def from_args(argv=None, env_file=None, config_file=None):
        """Args. Later sources win: defaults, the file .env (env_file), variables TWINKLE_FIELD, the
        YAML file of --config (config_file), flags (argv; None: the program's).

        Flags are --kebab-case or --snake_case, with = or a blank before the value; --FLAG and
        --no-FLAG for True and False. A field that two groups have is the first group's;
        --GROUP-FIELD names the other's. Flags that no group knows are in args.extra.
        InvalidError: a value of another type, an unknown key in YAML, a word that is not a flag;
        NotFoundError: a file that is not there.
        """
        args = Args()
        flags = _flags(sys.argv[1:] if argv is None else list(argv))
        if flags.pop("help", False):
            sys.stdout.write(_help())
            sys.exit(0)
        variables = {k: v for k, v in os.environ.items() if k.startswith(_PREFIX)}
        for where, values in (_dot_env(env_file), ("the environment", variables)):
            for name, value in values.items():
                key = name.lower().removeprefix(_PREFIX.lower())
                if _field(key) is not None:
                    _set(args, key, value, f"cli: {name} of {where}")
        given = flags.pop("config", None)
        path = given if config_file is None else config_file
        for key, value in ({} if path is None else _yaml(path)).items():
            require(_field(key) is not None, f"cli: {path} has {key!r}, which no group knows")
            _set(args, key, value, f"cli: {key} of {path}")
        for key, value in flags.items():
            if _field(key) is None:
                args.extra[key] = guessed(value)
            else:
                _set(args, key, value, f"cli: --{key}")
        return args


# key: (group, field). A field of two groups is the first one's; --config is the file of all.
_FIELDS = {f"{group}_{name}": (group, name) for group in GROUPS for name in GROUPS[group]}
for _group in reversed(GROUPS):
    _FIELDS |= {name: (_group, name) for name in GROUPS[_group]}
del _FIELDS["config"]
_FIELDS |= {alias: _FIELDS[name] for alias, name in ALIASES.items()}
_FIELDS["use_megatron"] = _FIELDS["strategy"]  # the older word of ModelScope's Twinkle


def _field(key):
    """(group, field) of a key in any case, with - or _; None: no group knows it."""
    return _FIELDS.get(key.lower().replace("-", "_"))


def _set(args, key, value, what):
    group, name = _field(key)
    if key.lower().replace("-", "_") == "use_megatron":
        is_megatron = typed(what, value, Field(False), bool)
        value = "native_fsdp" if is_megatron else "accelerate"
    setattr(getattr(args, group), name, typed(what, value, *field_of(group, name)))


def _flags(argv):
    """{key: text, or True and False}."""
    out, words = {}, list(argv)
    while words:
        word = words.pop(0)
        require(
            word.startswith("--") and len(word) > 2, f"cli: {word!r} is not a flag such as --lr"
        )
        key, mark, value = word[2:].partition("=")
        key = key.replace("-", "_")
        if mark:
            out[key] = value
        elif key.startswith("no_") and _field(key) is None:
            out[key[3:]] = False
        elif words and not words[0].startswith("--") and not _stands_alone(key, words[0]):
            out[key] = words.pop(0)
        else:
            out[key] = True
    return out


def _stands_alone(key, following):
    """A boolean flag takes the next word only when that is a boolean."""
    found = _field(key)
    return found is not None and field_of(*found)[1] is bool and not is_boolean_word(following)


def _dot_env(path):
    """(name, {key: text}) of a .env file, or of the one in this folder, which may be missing."""
    file = Path(".env" if path is None else path)
    if not file.is_file():
        if path is not None:
            raise NotFoundError(f"cli: env_file {path} does not exist")
        return ".env", {}
    values = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        key, mark, value = line.strip().removeprefix("export ").partition("=")
        if mark and not key.startswith("#"):
            values[key.strip()] = value.strip().strip("\"'")
    return str(file), values


def _yaml(path):
    """{key: value}; a group's keys are below its name or at the top."""
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise NotAvailableError(
            f"cli: {path} needs the package yaml, which is not installed: pip install pyyaml"
        ) from None
    if not Path(path).is_file():
        raise NotFoundError(f"cli: --config {path} does not exist")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise InvalidError(f"cli: {path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise InvalidError(f"cli: {path} holds a {type(content).__name__}, it must hold keys")
    out = {}
    for key, value in content.items():
        if key in GROUPS and isinstance(value, dict):
            out.update({_below(key, name): inner for name, inner in value.items()})
        else:
            out[str(key)] = value
    return out


def _below(group, name):
    """The key of a field below its group: the field where that is the group's anyway."""
    return name if _field(str(name)) == (group, name) else f"{group}_{name}"


def _help():
    lines = ["Arguments, as --name VALUE, TWINKLE_NAME=VALUE, or in the YAML file of --config:"]
    for group, fields in GROUPS.items():
        lines.append(f"\n{group}")
        for name in fields:
            why = f": no effect, {_INERT[name]}" if name in _INERT else ""
            lines.append(f"  --{name.replace('_', '-')} ({field_of(group, name)[0].default}){why}")
    return "\n".join(lines) + "\n"
