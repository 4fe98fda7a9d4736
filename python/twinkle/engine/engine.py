"""Engine: a model and who works on it."""

import gc
import itertools
import weakref

from twinkle import checks
from twinkle.core import core
from twinkle.data_format.lora import warn_of_another_base
from twinkle.engine.alike import facts, require_alike
from twinkle.engine.arguments import adapter_of
from twinkle.engine.group import engine_group
from twinkle.engine.ranks import ranks_of
from twinkle.engine.tenant import Tenant
from twinkle.errors import TwinkleError, require
from twinkle.infra import device_of
from twinkle.ledger import Ledger
from twinkle.template.template import Template, resolve

_DEVICE = "engine: device"
_numbers = itertools.count()
_several = weakref.WeakValueDictionary()  # {number: a compiled engine of several ranks}


class Engine:
    """One model, and the operations of its tenants.

    model_id: local Hugging Face directory, .gguf file, ms://, hf:// or bare id.
    mixed_precision: 'bf16' (weights and activations) or 'no' (float32); adapters, gradients and
    optimizer states are float32. deterministic: when it starts, the engine tests that its matrix
    products are batch-invariant, and raises InternalError if not; False: no test, and a tenant's
    results may depend on its neighbours in the last bits. device: 'cpu', or 'cuda' or 'cuda:1' if
    the build has CUDA kernels and the machine a GPU; None: TWINKLE_DEVICE, else 'cuda' if an engine
    can run there, else 'cpu'.
    device_mesh: of several ranks, which run this engine together (docs/parallel.md): each makes it
    with the same arguments and calls the same methods in the same order, with its own inputs; None:
    this process alone.
    options: the others of docs/options.md under "Engine", by name, such as
    token_budget (tokens of one training batch; larger operations take several), kv_tokens or
    max_sequences; None is the default. value_head is TransformersValueModel's.
    InvalidError: a value outside its limits, other arguments or another model's files than on other
    ranks; NotFoundError: no such model.
    """

    def __init__(
        self,
        model_id,
        mixed_precision="bf16",
        deterministic=True,
        device=None,
        device_mesh=None,
        **options,
    ):
        self.ranks = ranks_of(device_mesh)
        if self.ranks.size > 1:
            end_dropped()

        def make():
            checks.path("engine: model_id", model_id)
            require("model" not in options, "engine: Engine: the model is given by model_id")
            given = {
                "mixed_precision": mixed_precision,
                "device": device_of(None) if device is None else checks.text(_DEVICE, device),
                "deterministic": deterministic,
                **options,
            }
            path = resolve(model_id)
            return (path, given), facts(path, given, device_mesh) if self.ranks.size > 1 else None

        (path, given), of_ranks = self.ranks.agree("its engine", make)
        require_alike(of_ranks)
        self.model_id = str(model_id)
        # The compiled engine: every operation as a method that takes its tenant's name.
        with engine_group(device_mesh, self.ranks.watch) as group:
            self.operations = core().Engine(path, group=group, **given)
        if self.ranks.size > 1:
            _several[next(_numbers)] = self.operations
        self._template = None
        self._decodes = True  # until it is known that the model has no tokenizer

    def model_info(self):
        """Facts about the model: family, directory, config_json, vocab_size, max_positions
        (tokens), num_layers, num_routed_layers (those with routed experts), num_experts_per_tok (0:
        none), num_parameters, eos_ids; bf16_products: how this process multiplies
        bfloat16 on the CPU: 'tiles', 'pairs' or 'runs', each with bits of its own."""
        return self.operations.model_info()

    def stats(self):
        """Statistics of finished and queued work, as a dict. Counts start with the engine:

        num_queued (operations that have not ended), queued_bytes (as
        max_queued_bytes_total counts them); num_batches, num_passes (forwards), training_seconds,
        batches (num_tokens and num_tenants, each summed over all training batches) and
        last_batches (the same of each of the newest 20), num_recomputed_layers,
        num_replayed_passes (of training, as recorded graphs of a GPU), graph_failure (why a GPU's
        work is recorded no more; empty while it is);
        num_sampling_steps, sampling_seconds, num_samples and num_sequences (that are being
        sampled), num_computed_tokens, num_prefix_tokens (that the prefix cache spared),
        num_kv_pages, num_free_kv_pages, kv_page_tokens (of a page; all 0 before the first sample);
        num_parked (tenants in files), resident_bytes (of the others; 0 without a folder),
        num_returns, num_parking_failures, last_parking_failure; tenants, by name: num_queued,
        num_tokens (in training batches), num_sampled_tokens.
        """
        return self.operations.stats()

    def reset_prefix_cache(self):
        """Samples that are submitted from here on compute their prompts themselves, whatever
        earlier ones have left in the cache. Changes no result."""
        self.operations.reset_prefix_cache()

    def template(self):
        """The Template of the model's own tokenizer, made when it is first asked for. Without
        max_length: the model's positions are the limit."""
        if self._template is None:
            self._template = Template(self.model_id, max_length=None)
        return self._template

    def decoder(self):
        """The template that what is sampled is decoded with: template(), or None where the model
        comes without a tokenizer that can be read. The same for all tenants."""
        try:
            return self.template() if self._decodes else None
        except TwinkleError:
            self._decodes = False
            return None

    def tenant(
        self, name, lora_config=None, seed=0, weight=1.0, *, full_parameters=False, priority=0
    ):
        """Creates a tenant and returns it.

        lora_config: a LoraConfig (ours or peft's), a dict of its fields, or a PEFT directory to
        start from. None: the base model as it is, to score and sample with; or, with
        full_parameters=True, the right to train all its weights, which excludes every other
        tenant, those of the base model as it is too. seed: of initial weights and dropout, from 0
        to 2**64 - 1. weight: the tenant's share of batches, prompts and samples among tenants of
        its priority, 0.001 to 1000; priority: higher ones first.
        ConflictError: the name is taken, or full training excludes it; InvalidError: a value that
        cannot be, named.
        """
        with self.ranks.alike("its tenant"):
            checks.text("engine: name", name)
            checks.flag("engine: full_parameters", full_parameters)
            require(
                lora_config is None or not full_parameters,
                "engine: lora_config and full_parameters=True exclude each other: give one of them",
            )
            fields = {
                "tenant": name,
                "seed": checks.integer("engine: seed", seed, 0, 2**64 - 1),
                "weight": checks.number("engine: weight", weight, least=0.001, most=1000),
                "priority": checks.integer("engine: priority", priority, -(2**31), 2**31 - 1),
                "frozen": lora_config is None and not full_parameters,
            }
            if lora_config is not None:
                fields |= adapter_of(lora_config, self.model_id)[1]
        made = Ledger(tenant=None)
        try:
            made.run(self.operations.create, lambda _: {"tenant": Tenant(self, name)}, **fields)
            if directory := fields.get("directory"):
                warn_of_another_base(directory, self.model_id, self.model_info()["directory"])
        except BaseException:  # a name that nobody got is free again
            if made.tenant is not None:
                made.tenant.delete()
            raise
        return made.tenant


def end_dropped():
    """Ends the engines of several ranks that only cycles of a script's objects keep: here on every
    rank, not where Python collects garbage, which is another place on each. An engine's end waits
    for the other ranks', so they end in the order in which they were made."""
    held = [each for _, each in sorted(_several.items(), reverse=True)]
    gc.collect()
    while held:
        held.pop()
