"""Args: what CLI.from_args() found, by group; and the values' types."""

import contextlib
import json
from types import SimpleNamespace

from twinkle import checks
from twinkle.cli.table import GROUPS
from twinkle.errors import NotFoundError

# Texts that stand for True and False.
WORDS = dict.fromkeys(("true", "yes", "on", "1"), True)
WORDS |= dict.fromkeys(("false", "no", "off", "0"), False)
_NONE = ("none", "null", "~")


class Args:
    """args.GROUP.FIELD; args[FIELD] and args.get(FIELD) look through the groups in order, then
    through args.extra, which holds the flags that no group knows. get_GROUP_args() is
    {field: value} of a group, without None."""

    def __init__(self):
        for group, fields in GROUPS.items():
            defaults = {name: field.default for name, field in fields.items()}
            setattr(self, group, SimpleNamespace(**defaults))
        self.extra = {}

    def get(self, key, default=None):
        """The field of the first group that has it, else extra's flag, else `default`."""
        groups = (vars(getattr(self, name)) for name in GROUPS)
        return next((group[key] for group in groups if key in group), self.extra.get(key, default))

    def __getitem__(self, key):
        """As get. NotFoundError: no group and no flag has it."""
        if key not in self.extra and not any(key in fields for fields in GROUPS.values()):
            raise NotFoundError(f"cli: there is no argument {key!r}")
        return self.get(key)

    def to_dict(self):
        """{field: value} of all groups, without None; where two groups have a field the first one's
        counts, and extra's where there is none."""
        out = dict(self.extra)
        for name in reversed(GROUPS):
            out.update(self._group(name))
        return out

    def _group(self, name, **others):
        values = others | {k: v for k, v in vars(getattr(self, name)).items() if v is not None}
        return {key: value for key, value in values.items() if value is not None}

    def __getattr__(self, name):
        group = name.removeprefix("get_").removesuffix("_args")
        if name != f"get_{group}_args" or group not in GROUPS:
            raise AttributeError(f"Args has no attribute {name!r}")
        return lambda: self._group(group)

    def get_model_args(self):
        """The model's fields; model_id is the template's where it has none."""
        return self._group("model", model_id=self.template.model_id)

    def get_template_args(self):
        """The template's fields; model_id is the model's where it has none."""
        return self._group("template", model_id=self.model.model_id)

    def get_lora_args(self):
        """The arguments of a LoraConfig."""
        lora = self.lora
        return {
            "target_modules": lora.lora_target_modules or "all-linear",
            "r": lora.lora_r,
            "lora_alpha": lora.lora_alpha,
            "lora_dropout": lora.lora_dropout,
        }

    def get_optimizer_args(self):
        """The optimizer's fields; learning_rate is called lr."""
        out = self._group("optimizer")
        out["lr"] = out.pop("learning_rate")
        return out


def typed(what, value, field):
    """`value` as the field's type. InvalidError: it cannot be; the text names `what`."""
    is_text = isinstance(value, str)
    if field.none and (value is None or (is_text and value.lower() in _NONE)):
        return None
    if field.choices:
        return checks.one_of(what, value, field.choices)
    if field.kind is bool:
        return checks.flag(what, WORDS.get(value.lower(), value) if is_text else value)
    if field.kind is str:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)  # YAML reads a revision of digits as a number
        return checks.text(what, value, empty=True)
    if field.kind is list:
        value = [part.strip() for part in value.split(",")] if is_text else value
        return checks.instance(what, value, list, "a list, or texts with commas between them")
    if field.kind is dict:
        with contextlib.suppress(ValueError):
            value = json.loads(value) if is_text else value
        return checks.instance(what, value, dict, "a dict, or the text of a JSON object")
    number = _number(value) if is_text else value
    if field.kind is float:
        return checks.number(what, number, infinite=field.infinite)
    whole = isinstance(number, float) and number.is_integer()
    return checks.integer(what, int(number) if whole else number)


def guessed(text):
    """The value of a flag that no group knows: a number, True, False, None, a list or a text."""
    if not isinstance(text, str):
        return text
    value, low = _number(text), text.lower()
    if value is not text:
        return value
    if low in _NONE:
        return None
    if "," in text:
        return [guessed(part.strip()) for part in text.split(",")]
    return WORDS.get(low, text)


def _number(text):
    """An int or a float, or the text itself."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
