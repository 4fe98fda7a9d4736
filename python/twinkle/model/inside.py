"""The part of `model.model` that scripts reach for, where other engines have torch's modules."""

import json
import re
from types import SimpleNamespace


class Inside:
    """config: the fields of config.json. modules() and named_modules(): the model and its decoder
    layers, by the class names of transformers, and nothing else of them."""

    _no_split_modules = None

    def __init__(self, model_info):
        config = json.loads(model_info["config_json"] or "{}")
        self.config = SimpleNamespace(**config)
        (whole, *_) = config.get("architectures") or [f"{model_info['family'].title()}Model"]
        layer = re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", whole) + "DecoderLayer"
        self._named = {"": type(whole, (), {})()}
        for i in range(model_info["num_layers"]):
            self._named[f"model.layers.{i}"] = type(layer, (), {})()

    def named_modules(self):
        """(name, object) of the model and of each decoder layer."""
        return iter(self._named.items())

    def modules(self):
        """The objects of named_modules."""
        return iter(self._named.values())

    def __getattr__(self, name):
        raise AttributeError(
            f"model: model.model has no {name!r}, only config, modules() and named_modules(): the "
            "weights are the engine's, which get_state_dict() returns"
        )
