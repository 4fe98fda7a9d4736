"""Patches: changes to a model. The engine's models take one kind."""

from twinkle.errors import refuse_unknown


class Patch:
    """Base of patches. __call__(module, ...) changes a model's handle; unpatch() takes it back."""

    def __call__(self, module, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} must define __call__")

    def unpatch(self, module, *args, **kwargs):
        raise NotImplementedError(f"{type(self).__name__} must define unpatch")


class NoSplitModulesPatch(Patch):
    """Sets model.model._no_split_modules. The engine knows its layers; this changes nothing."""

    def __init__(self, module_names=()):
        self.module_names = set(module_names)
        self._before = None

    def __call__(self, module, *args, **kwargs):
        refuse_unknown("patch: NoSplitModulesPatch", kwargs)
        self._before = module._no_split_modules
        module._no_split_modules = self.module_names

    def unpatch(self, module, *args, **kwargs):
        module._no_split_modules = self._before


__all__ = ["NoSplitModulesPatch", "Patch"]
