"""Args: what CLI.from_args() found, by group; and the values' types."""

import json
from types import SimpleNamespace

from twinkle import checks
from twinkle.cli.table import GROUPS, Field
from twinkle.errors import InvalidError, NotFoundError

_MISSING = object()
_WORDS = dict.fromkeys(("true", "yes", "on", "1"), True)
_WORDS |= dict.fromkeys(("false", "no", "off", "0"), False)
_NONE = ("none", "null", "~")


def field_of(group, name):
    """(Field, type) of an entry of the table."""
    entry = GROUPS[group][name]
    if isinstance(entry, type):
        return Field(None, none=True), entry
    field = entry if isinstance(entry, Field) else Field(entry)
    return field, type(field.default)


class Args:
    """args.GROUP.FIELD; args[FIELD] and args.get(FIELD) look through the groups in order, then
    through args.extra, which holds the flags that no group knows. get_GROUP_args() is
    {field: value} of a group, without None."""

    def __init__(self):
        for group, fields in GROUPS.items():
            defaults = {name: field_of(group, name)[0].default for name in fields}
            setattr(self, group, SimpleNamespace(**defaults))
        self.extra = {}

    def get(self, key, default=None):
        """The field of the first group that has it, else extra's flag, else `default`."""
        groups = (vars(getattr(self, name)) for name in GROUPS)
        return next((group[key] for group in groups if key in group), self.extra.get(key, default))

    def __getitem__(self, key):
        """As get. NotFoundError: no group and no flag has it."""
        value = self.get(key, _MISSING)
        if value is _MISSING:
            raise NotFoundError(f"cli: there is no argument {key!r}")
        return value

    def to_dict(self):
        """{field: value} of all groups, without None; where two groups have a field the first one's
        counts, and extra's where there is none."""
        out = dict(self.extra)
        for name in reversed(GROUPS):
            out.update(self._group(name))
        return out

    def _group(self, name):
        return {key: value for key, value in vars(getattr(self, name)).items() if value is not None}

    def __getattr__(self, name):
        group = name.removeprefix("get_").removesuffix("_args")
        if name != f"get_{group}_args" or group not in GROUPS:
            raise AttributeError(f"Args has no attribute {name!r}")
        return lambda: self._group(group)

    def get_model_args(self):
        """The model's fields; model_id is the template's where it has none."""
        return self._with_id_of(self.template) | self._group("model")

    def get_template_args(self):
        """The template's fields; model_id is the model's where it has none."""
        return self._with_id_of(self.model) | self._group("template")

    @staticmethod
    def _with_id_of(group):
        return {"model_id": group.model_id} if group.model_id else {}

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


def is_boolean_word(text):
    """True for a text that stands for True or False: yes, off, 1, ..."""
    return text.lower() in _WORDS


def typed(what, value, field, kind):
    """`value` as the field's type. InvalidError: it cannot be; the text names `what`."""
    is_text = isinstance(value, str)
    if field.none and (value is None or (is_text and value.lower() in _NONE)):
        return None
    if value is None:
        checks.refuse(what, value, "given")
    if field.choices:
        checks.one_of(what, value, field.choices)
    if kind is bool:
        return checks.flag(what, _WORDS.get(value.lower(), value) if is_text else value)
    if kind in (int, float):
        number = _number(value) if is_text else value
        if kind is float:
            return checks.number(what, number, infinite=field.infinite)
        whole = isinstance(number, float) and number.is_integer()
        return checks.integer(what, int(number) if whole else number)
    return {str: _text, list: _list, dict: _dict}[kind](what, value)


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
    return _WORDS.get(low, text)


def _number(text):
    """An int or a float, or the text itself."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _text(what, value):
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)  # YAML reads a revision of digits as a number
    return checks.text(what, value, empty=True)


def _list(what, value):
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return checks.instance(what, value, list, "a list, or texts with commas between them")


def _dict(what, value):
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InvalidError(f"{what} is {value!r}, it must be a JSON object") from error
    return dict(checks.mapping(what, value))
