"""CLI.from_args(): a script's arguments from defaults, .env, the environment, YAML and flags."""

import importlib
import os
import sys
from pathlib import Path

from twinkle.cli.arguments import WORDS, Args, guessed, typed
from twinkle.cli.table import ALIASES, GROUPS, Field
from twinkle.errors import InvalidError, NotAvailableError, NotFoundError, require
from twinkle.without_effect import WITHOUT_EFFECT

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
        variables = {k: v for k, v in os.environ.items() if k.startswith("TWINKLE_")}
        sources = {env_file or ".env": _dot_env(env_file), "the environment": variables}
        for where, values in sources.items():
            for name, value in values.items():
                key = name.lower().removeprefix("twinkle_")
                _set(args, key, value, f"cli: {name} of {where}")
        given = flags.pop("config", None)
        path = given if config_file is None else config_file
        for key, value in ({} if path is None else _yaml(path)).items():
            known = _set(args, key, value, f"cli: {key} of {path}")
            require(known, f"cli: {path} has {key!r}, which no group knows")
        for key, value in flags.items():
            if not _set(args, key, value, f"cli: --{key}"):
                args.extra[key] = guessed(value)
        return args


# key: (group, field). A field of two groups is the first one's; --config is the file of all.
_FIELDS = {f"{group}_{name}": (group, name) for group in GROUPS for name in GROUPS[group]}
for _group in reversed(GROUPS):
    _FIELDS |= {name: (_group, name) for name in GROUPS[_group]}
del _FIELDS["config"]
_FIELDS |= {alias: _FIELDS[name] for alias, name in ALIASES.items()}
_FIELDS["use_megatron"] = _FIELDS["strategy"]  # the older word of ModelScope's Twinkle


def _key(text):
    return str(text).lower().replace("-", "_")


def _set(args, key, value, what):
    """Sets the field of a key in any case, with - or _. False: no group knows it."""
    key = _key(key)
    if key not in _FIELDS:
        return False
    group, name = _FIELDS[key]
    if key == "use_megatron":
        value = "native_fsdp" if typed(what, value, Field(False, kind=bool)) else "accelerate"
    setattr(getattr(args, group), name, typed(what, value, GROUPS[group][name]))
    return True


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
        elif key.startswith("no_") and _key(key) not in _FIELDS:
            out[key[3:]] = False
        elif words and not words[0].startswith("--") and not _stands_alone(key, words[0]):
            out[key] = words.pop(0)
        else:
            out[key] = True
    return out


def _stands_alone(key, following):
    """A boolean flag takes the next word only when that is a boolean."""
    group, name = _FIELDS.get(_key(key), (None, None))
    return group and GROUPS[group][name].kind is bool and following.lower() not in WORDS


def _text_of(what, path):
    if not Path(path).is_file():
        raise NotFoundError(f"cli: {what} {path} does not exist")
    return Path(path).read_text(encoding="utf-8")


def _dot_env(path):
    """{key: text} of a .env file, or of the one in this folder, which may be missing."""
    if path is None and not Path(".env").is_file():
        return {}
    lines = _text_of("env_file", path or ".env").splitlines()
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return {k.strip(): v.strip().strip("\"'") for k, mark, v in pairs if mark and k[:1] != "#"}


def _yaml(path):
    """{key: value}; a group's keys are below its name or at the top."""
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        raise NotAvailableError(
            f"cli: {path} needs the package yaml, which is not installed: pip install pyyaml"
        ) from None
    try:
        content = yaml.safe_load(_text_of("--config", path)) or {}
    except yaml.YAMLError as error:
        raise InvalidError(f"cli: {path} is not YAML: {error}") from error
    kind = type(content).__name__
    require(isinstance(content, dict), f"cli: {path} holds a {kind}, it must hold keys")
    out = {}
    for key, value in content.items():
        below = isinstance(value, dict) and key in GROUPS
        out |= {_below(key, name): v for name, v in value.items()} if below else {str(key): value}
    return out


def _below(group, name):
    """The key of a field, or of another word for it, below its group."""
    return name if _FIELDS.get(_key(name), ("",))[0] == group else f"{group}_{name}"


def _help():
    lines = ["Arguments, as --name VALUE, TWINKLE_NAME=VALUE, or in the YAML file of --config:"]
    for group, fields in GROUPS.items():
        lines.append(f"\n{group}")
        for name, field in fields.items():
            why = f": no effect, {_INERT[name]}" if name in _INERT else ""
            lines.append(f"  --{name.replace('_', '-')} ({field.default}){why}")
    return "\n".join(lines) + "\n"
