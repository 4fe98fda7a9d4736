"""Patches: changes to a model. The engine's models take one kind."""

import contextlib
import sys

from twinkle.errors import later, refuse_unknown
from twinkle.plugin import construct_class


class Patch:
    """Base of patches. __call__(module, ...) changes a model's handle; unpatch() takes it back."""

    def __call__(self, module, *args, **kwargs):
        """Changes `module`; apply_patch returns what this does."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__")

    def unpatch(self, module, *args, **kwargs):
        """Takes the change back."""
        raise NotImplementedError(f"{type(self).__name__} must define unpatch")


class NoSplitModulesPatch(Patch):
    """Sets model.model._no_split_modules. The engine knows its layers; this changes nothing."""

    def __init__(self, module_names=()):
        self.module_names = set(module_names)
        self._before = None

    def __call__(self, module, *args, **kwargs):
        """Sets it on `module`, a model's handle. InvalidError: any keyword argument."""
        refuse_unknown("patch: NoSplitModulesPatch", kwargs)
        self._before = module._no_split_modules
        module._no_split_modules = self.module_names

    def unpatch(self, module, *args, **kwargs):
        module._no_split_modules = self._before


def apply_patch(module, patch_cls, *args, **kwargs):
    """Applies a Patch, a subclass, its name or a plugin id to `module`; what it returns."""
    return _patch(patch_cls)(module, *args, **kwargs)


@contextlib.contextmanager
def apply_context(module, patch_cls, *args, **kwargs):
    """apply_patch for the length of a `with` block, at whose end unpatch takes it back."""
    patch = _patch(patch_cls)
    patch(module, *args, **kwargs)
    try:
        yield patch
    finally:
        patch.unpatch(module)


def _patch(patch_cls):
    return construct_class(patch_cls, Patch, sys.modules[__name__])


__all__ = ["NoSplitModulesPatch", "Patch", "apply_context", "apply_patch"]

_MODULES = "transformers' own modules"
__getattr__ = later(
    __name__,
    {
        "GatedDeltaNetPaddingFreePatch": _MODULES,
        "MegatronEmbeddingPatch": "Megatron",
        "MegatronPeft": "Megatron",
        "Qwen3AllowToolTailTemplate": "transformers' own chat templates",
        "Qwen3ChatTemplate": "transformers' own chat templates",
        "TransformersEmbeddingPatch": _MODULES,
        "TransformersFusedCEPatch": _MODULES,
        "VLLMLoraWeights": "vLLM",
        "VLLMMoEWeights": "vLLM",
    },
)
