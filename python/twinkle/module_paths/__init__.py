"""Module paths of ModelScope's Twinkle that have no file here. Each is made when it is imported,
and gives the public names of modules that are here; classes are pickled by the path of these."""

import importlib
import sys
from importlib.machinery import ModuleSpec

from twinkle.errors import NotAvailableError

# path: the modules here that are asked for a name, one after the other
_PATHS = {
    "twinkle.dataset.base": "dataset",
    "twinkle.model.megatron": "module_paths.megatron",
    "twinkle.model.transformers": "model",
    "twinkle.model.transformers.moe": "model",
    "twinkle.model.transformers.moe.router_replay": "model",
    "twinkle.module": "",
    "twinkle.module.scheduler": "",
    "twinkle.patch.no_split_modules": "patch",
    "twinkle.preprocessor.olympiad_bench": "preprocessor",
    "twinkle.reward.olympiad_bench": "reward",
    "twinkle.sampler.vllm_sampler": "sampler",
    "twinkle.server.common": "server.datum",
    "twinkle.server.tinker.common": "server.datum",
    "twinkle.utils": "device_mesh infra platform plugin logger seeding tensors "
    "module_paths.framework module_paths.file_lock",
    "twinkle.utils.device_mesh": "device_mesh infra platform",
    "twinkle.utils.framework": "module_paths.framework",
    "twinkle.utils.framework_util": "seeding",
    "twinkle.utils.import_utils": "plugin",
    "twinkle.utils.loader": "plugin",
    "twinkle.utils.logger": "logger",
    "twinkle.utils.network": "platform",
    "twinkle.utils.parallel": "module_paths.file_lock",
    "twinkle.utils.platforms": "platform",
    "twinkle.utils.seed": "seeding",
    "twinkle.utils.torch_util": "tensors",
    "twinkle.utils.torch_utils": "tensors",
    "twinkle.utils.unsafe": "plugin",
    "twinkle_agentic.reward": "reward",
    "twinkle_client.dataloader": "dataloader",
    "twinkle_client.dataset": "dataset",
}


# package: what its modules that are not here need
NEEDS = {
    "twinkle_agentic": "rollouts of many turns",
    "twinkle_client": "code of clients on a server (data, templates, processors and rewards run "
    "in the client: twinkle.dataset, twinkle.template, twinkle.processor and twinkle.reward)",
}


class Paths:
    """Finds and makes these modules, for Python's import; other modules of twinkle_agentic and
    twinkle_client are refused."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """The ModuleSpec of one of the paths; None: another. NotAvailableError: a module of
        twinkle_agentic or twinkle_client that is not here."""
        if name in _PATHS:
            return ModuleSpec(name, Paths, is_package=True)
        package, _, module = name.partition(".")
        if module and package in NEEDS:
            needs = NEEDS[package]
            raise NotAvailableError(
                f"{name}: this module needs {needs}, which this version does not have"
            )
        return None

    @staticmethod
    def create_module(spec):
        """None: Python makes it."""

    @staticmethod
    def exec_module(module):
        """Gives the module its names."""
        places = [f"twinkle.{place}" for place in _PATHS[module.__name__].split()]

        def find(name):
            for place in () if name.startswith("_") else places:
                found = getattr(importlib.import_module(place), name, module)
                if found is not module:
                    return found
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        module.__doc__ = f"The path in ModelScope's Twinkle of names of {', '.join(places)}."
        module.__getattr__ = find


sys.meta_path.append(Paths)
