"""Args: what CLI.from_args() found, by group."""

from dataclasses import fields

from twinkle.cli.groups import GROUPS
from twinkle.errors import NotFoundError

_MISSING = object()


class Args:
    """args.GROUP.FIELD; args[FIELD] and args.get(FIELD) look through the groups in order, then
    through args.extra, which holds the flags that no group knows."""

    def __init__(self):
        for name, group in GROUPS.items():
            setattr(self, name, group())
        self.extra = {}

    def get(self, key, default=None):
        """The field of the first group that has it, else extra's flag, else `default`."""
        for name in GROUPS:
            if hasattr(getattr(self, name), key):
                return getattr(getattr(self, name), key)
        return self.extra.get(key, default)

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
        group = getattr(self, name)
        values = {field.name: getattr(group, field.name) for field in fields(group)}
        return {key: value for key, value in values.items() if value is not None}

    def get_model_args(self):
        """The model's fields; model_id is the template's where it has none."""
        return self._with_model_id("model", self.template.model_id)

    def get_template_args(self):
        """The template's fields; model_id is the model's where it has none."""
        return self._with_model_id("template", self.model.model_id)

    def _with_model_id(self, name, model_id):
        out = self._group(name)
        return out if "model_id" in out or model_id is None else {**out, "model_id": model_id}

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


def _getter(name):
    def get(self):
        return self._group(name)

    get.__name__ = f"get_{name}_args"
    get.__doc__ = f"{{field: value}} of the group {name}, without None."
    return get


for _name in GROUPS:
    if not hasattr(Args, f"get_{_name}_args"):
        setattr(Args, f"get_{_name}_args", _getter(_name))
