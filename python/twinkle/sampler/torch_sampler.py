"""TorchSampler and vLLMSampler: two names of the engine's own sampler."""

import itertools
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

from twinkle import checks
from twinkle.checkpoint_engine.mixin import ReceivesWeights
from twinkle.core import core
from twinkle.data_format import LoraConfig, SampledSequence
from twinkle.data_format.lora import warn_of_another_base
from twinkle.engine.batch import as_list
from twinkle.engine.ranks import Ranks, ranks_of
from twinkle.engine.sampling import Prompts, routes_shape
from twinkle.engine.stream import TokenStream
from twinkle.errors import InvalidError, refuse_unknown, require
from twinkle.infra import current_run, place
from twinkle.ledger import Ledger
from twinkle.model import TransformersModel
from twinkle.model.adapters import frozen_tenant
from twinkle.remote.decorate import remote_class
from twinkle.remote.dispatch import Rows
from twinkle.remote.how import How, at_once
from twinkle.remote.rows import first_row
from twinkle.sampler.base import Sampler
from twinkle.sampler.engine_args import EngineArgs
from twinkle.seeding import stable_seed
from twinkle.template.template import Template, resolve

_numbers = itertools.count()


def _no_tenants():
    """The tenants of the sampler's own engine: the base model, and of adapters' directories:
    (_version of its files, tenant), oldest first; stale: tenants to delete; synced: those of
    adapters that were received, by name; newest: that which was received last; met: those that a
    meeting of ranks has made, which replaces its own; left: those of meetings that have ended."""
    return Ledger(frozen=None, loaded={}, stale=(), synced={}, newest=None, met=set(), left=set())


def _deltas(tokens):
    with tokens:
        for token in tokens:
            if token.text or token.stop_reason:
                yield token.text, token.stop_reason


def _version(directory):
    """A key that changes with the adapter's files; the engine reports missing ones."""
    out = []
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        with suppress(OSError):
            stat = Path(directory, name).stat()
            out.append((name, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return out


# The decorator of methods of prompts: each worker gets its piece of them.
_of_prompts = How(dispatch=Rows(as_list, alone=True), collect="flatten")


@remote_class(execute="all", listed=False, keep=("remote_group", "instance_id"))
class TorchSampler(ReceivesWeights, Sampler):
    """Samples from its own model, whose weights CheckpointEngineManager replaces, or, with model=,
    from a TransformersModel's engine, and thus from the weights being trained.

    engine_args: options of the sampler's own engine, by their names in docs/options.md, and vLLM's
    names: max_model_len (tokens of prompt and reply), dtype ('bfloat16', 'float32'), seed,
    max_loras, max_lora_rank (of adapter_path), enable_lora (False refuses adapter_path),
    logprobs_mode; max_num_seqs is max_sequences, max_num_batched_tokens prefill_tokens,
    enable_prefix_caching prefix_cache, enforce_eager no decode_graphs, gpu_memory_utilization
    memory_share; enable_return_routed_experts is SamplingParams.routed_experts of every call.
    Those in docs/without-effect.md have no effect. vLLM's other names are refused, with what to
    use instead, as are options of the engine where that is model='s.
    InvalidError: neither model_id nor model, a wrong type of one of them, an unknown argument or
    one of engine_args, a value outside its limits, a quantization, a tensor_parallel_size other
    than 1, another dtype, which with model= is one that is not the model's, a max_model_len above
    the model's, a remote_group that initialize was not given, a device that is not there, or with
    model= another one than the model's; NotFoundError: no such model; NotAvailableError: a
    device_mesh of several ranks or of another device than CPU and CUDA, logits for logprobs_mode.
    """

    def __init__(self, model_id=None, engine_args=None, device_mesh=None, model=None, **kwargs):
        refuse_unknown(f"sampler: {type(self).__name__}", kwargs, ("remote_group", "instance_id"))
        require(model_id is not None or model is not None, "sampler: model_id or model is missing")
        if model is not None and not isinstance(model, TransformersModel):
            checks.refuse("sampler: model", model, "a TransformersModel")
        if model is not None and not issubclass(type(model), TransformersModel):  # a Proxy
            raise InvalidError(
                f"sampler: model lives in the workers of group {model.remote_group}: give the "
                f"sampler remote_group={model.remote_group!r} too, so that it is made there"
            )
        if model_id is not None:
            model_id = checks.path("sampler: model_id", model_id)
        self._args = EngineArgs(engine_args, model, model_id or model.model_id)
        shared, group = None if model is None else model._device, kwargs.get("remote_group")
        self.device_mesh, self._device = place(self, device_mesh, group, shared)
        self.model_id = model_id if model_id is not None else str(model.tokenizer_id)
        self._model = model
        self.engine = self._engine_of(self.model_id) if model is None else model.engine
        limit = self.engine.model_info()["max_positions"]
        self.max_model_len = self._args.given.get("max_model_len", limit)
        require(
            self.max_model_len <= limit,
            f"sampler: max_model_len is {self.max_model_len}, it must be from 1 to {limit}",
        )
        self._tenants = _no_tenants()
        self._lock = threading.RLock()  # guards _tenants and _calls
        self._calls = 0
        # Samplers may share an engine, and tenants' names are its: on every rank the same.
        self._name = next(_numbers)
        self._num_adapters = itertools.count()

    # ---- whose weights

    def _engine_of(self, model_id):
        own = {"mixed_precision": self._args.precision, "device": self._device}
        return core().Engine(resolve(model_id), **own, **self._args.options)

    def _tenant_of(self, adapter_name, adapter_path, use_base_model):
        """A function that gives the tenant to sample with, of arguments that are checked here."""
        checks.text("sampler: adapter_name", adapter_name, none=True, empty=True)
        use_base_model = checks.flag("sampler: use_base_model", use_base_model)
        if adapter_path is not None:
            checks.path("sampler: adapter_path", adapter_path)
            require(
                self._args.given.get("enable_lora", True),
                "sampler: adapter_path is given, but engine_args says enable_lora=False",
            )
            return partial(self._adapter_at, self._adapter_directory(str(adapter_path)))
        if self._model is None:
            require(
                not adapter_name or adapter_name in self._tenants.synced,
                f"sampler: there is no adapter {adapter_name!r}; pass model= to share a model's "
                "adapters, or adapter_path=, or send it by CheckpointEngineManager",
            )
            return partial(self._own_tenant, adapter_name, use_base_model)
        if use_base_model:
            return self._model.frozen_tenant
        self._model._group(adapter_name or None)
        return partial(self._model.tenant_for_sampling, adapter_name or None)

    def _own_tenant(self, adapter_name, use_base_model):
        tenants = self._tenants
        if adapter_name:
            return tenants.synced[adapter_name]
        if tenants.newest is not None and not use_base_model:
            return tenants.newest
        return frozen_tenant(self.engine, tenants)

    def _has_left(self):
        with self._lock:
            self._tenants.left |= self._tenants.met
            self._tenants.met = set()

    def _receive_by(self, receive, meets=False):
        require(
            self._model is None,
            "sampler: this sampler samples from its model=, whose weights it need not receive",
        )
        with self._lock:
            engine, tenants = self.engine, self._tenants
            frozen = frozen_tenant(engine, tenants)
        got = receive(engine, frozen)  # others go on sampling meanwhile
        tenant, name = got.pop("tenant"), got["adapter_name"]
        with self._lock:
            tenants.newest = tenant
            if name:
                old = tenants.synced.get(name)
                tenants.synced = {**tenants.synced, name: tenant}
                if meets:
                    tenants.met.add(tenant)
                if old in tenants.left:  # no link knows it any more
                    tenants.left.discard(old)
                    tenants.stale = (*tenants.stale, old)
            if tenants is self._tenants:
                self._delete_stale()
        return got

    @at_once
    def load_full_weights_from_path(self, path):
        """Samples from the model at `path`, a directory such as save writes of full weights, from
        now on; the template stays, and adapters are loaded anew. Both models take memory until it
        is read; if that fails, the one before stays. InvalidError: the sampler shares a model's
        engine; another vocabulary, or fewer positions than max_model_len; NotFoundError: no model
        there."""
        checks.path("sampler: path", path)
        require(
            self._model is None,
            "sampler: load_full_weights_from_path: this sampler samples from its model=, whose "
            "weights are trained: load them into the model, or make a sampler of their own, "
            f"TorchSampler(model_id={str(path)!r})",
        )
        engine = self._engine_of(str(path))
        old, new = self.engine.model_info(), engine.model_info()
        require(
            new["vocab_size"] == old["vocab_size"] and new["max_positions"] >= self.max_model_len,
            f"sampler: the model at {path} has a vocabulary of {new['vocab_size']} and "
            f"{new['max_positions']} positions, it must have {old['vocab_size']}, and at least "
            f"{self.max_model_len}, which is max_model_len",
        )
        with self._lock:
            self.engine, self._tenants = engine, _no_tenants()

    def _adapter_directory(self, path):
        directory, most = resolve(path), self._args.given.get("max_lora_rank")
        require(
            most is None or LoraConfig.from_any(directory).r <= most,
            f"sampler: the adapter at {directory} has a higher rank than max_lora_rank, {most}",
        )
        return directory

    def _adapter_at(self, directory):
        """The tenant with the adapter there, loaded anew when its files have changed."""
        version = _version(directory)
        self._tenants.settle()
        self._delete_stale()
        loaded = self._tenants.loaded
        known, tenant = loaded.get(directory, (None, None))
        if known == version:
            return tenant
        tenant = f"sampler/{self._name}/{next(self._num_adapters)}/{directory}"
        others = [(d, each) for d, each in loaded.items() if d != directory]
        most = self._args.given.get("max_loras", 1)
        kept = dict(others[max(0, len(others) + 1 - most) :])
        stale = tuple(each for d, (_, each) in loaded.items() if d not in kept)
        self._tenants.run(
            self.engine.create,
            lambda _: {"loaded": {**kept, directory: (version, tenant)}, "stale": stale},
            tenant=tenant,
            directory=directory,
        )
        self._delete_stale()
        warn_of_another_base(directory, self.engine.model_info()["directory"])
        return tenant

    def _delete_stale(self):
        for tenant in self._tenants.stale:  # if an interrupt ends this, all of them once more
            self.engine.delete(tenant=tenant)  # after the samples that others have begun
        self._tenants.stale = ()

    # ---- sampling

    @_of_prompts
    def sample(
        self,
        inputs,
        sampling_params=None,
        adapter_name="",
        adapter_path=None,
        *,
        return_encoded=False,
        use_base_model=False,
        **named,
    ):
        """One SampleResponse per input, in order.

        inputs: Trajectory or InputFeature, or a list of them. sampling_params: SamplingParams or a
        dict; in their place their fields may be given by name, as max_tokens=64. max_tokens=0 only
        scores the prompts, of trajectories without a generation prompt: a response's sequences have
        no tokens then, and new_input_feature is the prompt's own. Without a seed every prompt of
        every call draws its own from the run's seed; over several processes, which then all call
        it, by its place among the prompts of all, so that the samples are those of one process with
        all prompts. adapter_path: a PEFT directory to sample with. return_encoded: every sequence
        has its new_input_feature and text even where the inputs are tokens and no template was set;
        the model's own is used then.
        InvalidError: a token outside the vocabulary, a prompt that with max_tokens is longer than
        max_model_len, an adapter of another model; NotFoundError: adapter_path has no adapter.
        """

        def make():
            params = self._args.params(sampling_params, named)
            encoded = checks.flag("sampler: return_encoded", return_encoded)
            prompts = self._prompts(inputs, params, encoded)
            tenant_of = self._tenant_of(adapter_name, adapter_path, use_base_model)
            return (prompts, params, tenant_of), len(prompts.features)

        (prompts, params, tenant_of), begin = self._with_others(sampling_params, named, make)
        with self._lock:  # no other thread forgets the adapter before its sample is queued
            future = self.engine.sample(**self._request(prompts, tenant_of(), begin))
        shape = routes_shape(self.engine, params.routed_experts)
        responses = prompts.responses(future.result(), self.template, shape)
        if params.max_tokens == 0:
            for response, feature in zip(responses, prompts.features, strict=True):
                response.sequences = [
                    SampledSequence("length", [], new_input_feature=dict(feature))
                    for _ in range(params.num_samples)
                ]
        return responses

    def sample_stream(
        self,
        inputs,
        sampling_params=None,
        adapter_name="",
        adapter_path=None,
        *,
        use_base_model=False,
        **named,
    ):
        """sample() of one input, as a generator of (delta, reason): the text that has come since
        the last one, and 'stop' or 'length' with the last, None before. The deltas together are the
        `decoded` of sample() with the same seed. Closing the generator ends the sampling.
        InvalidError: num_samples is not 1, not one input, and as sample(), which may come with the
        first delta; NotFoundError: adapter_path has no adapter."""
        params = self._args.params(sampling_params, named)
        require(
            params.num_samples == 1,
            f"sampler: num_samples is {params.num_samples}, sample_stream takes 1",
        )
        prompts = self._prompts(inputs, params, True)
        count = len(prompts.features)
        require(count == 1, f"sampler: sample_stream takes one input, not {count}")
        with self._lock:
            tenant = self._tenant_of(adapter_name, adapter_path, use_base_model)()
            request = self._request(prompts, tenant, first_row() or 0)
            stream = self.engine.sample_stream(**request)
        return _deltas(TokenStream(stream, self.template))

    def sample_stream_to_queue(self, queue, inputs, sampling_params=None, **kwargs):
        """Puts what sample_stream gives into `queue`: each (delta, reason), and None behind the
        last, also where an error ends it, which is raised here. A full queue is waited for.
        InvalidError: `queue` has no method put, and as sample_stream."""
        if not callable(getattr(queue, "put", None)):
            checks.refuse("sampler: queue", queue, "a queue, such as queue.Queue()")
        try:
            for delta in self.sample_stream(inputs, sampling_params, **kwargs):
                queue.put(delta)
        finally:
            queue.put(None)

    def _with_others(self, given, named, make):
        """The part of make() that stays here, once all ranks that take part have theirs, and how
        many prompts those before this one have. given, named: the parameters, not checked yet."""
        fields = named if given is None else given
        if not isinstance(fields, dict):
            fields = getattr(given, "__dict__", {})
        most = fields.get("max_tokens", fields.get("max_new_tokens"))
        draws = fields.get("seed") is None and fields.get("temperature", 1.0) != 0 and most != 0
        begin, ranks = first_row(), Ranks()  # known where the call was cut
        if self._model is not None:  # the engine takes prompts of all its ranks
            ranks = self._model._ranks
        elif begin is None and draws:  # the others draw nothing, and one rank may ask for itself
            ranks = ranks_of(self.device_mesh)
        made, counts = ranks.agree("its prompts", make)
        return made, sum(counts[: ranks.rank]) if begin is None else begin

    def _request(self, prompts, tenant, begin):
        """The arguments of the engine's sample. begin: prompts of the ranks before this one."""
        self._calls += 1
        run, calls = self._args.given.get("seed", current_run().seed), self._calls
        return prompts.request(tenant, lambda i: stable_seed(run, "sample", calls, begin + i))

    def _prompts(self, inputs, params, return_encoded=False):
        features = as_list(inputs)
        if self.template is None and (
            return_encoded
            or params.stop_texts
            or any("input_ids" not in feature for feature in features)
        ):
            self.template = Template(self.model_id)
        scores = params.max_tokens == 0  # a whole conversation, which no reply follows
        encode = self.template.encode if scores and self.template else self.encode_trajectory
        features = [f if "input_ids" in f else encode(f) for f in features]
        all_params, limit = [params] * len(features), self.max_model_len
        return Prompts("sampler: inputs", features, all_params, limit, lambda: self.template)

    # ---- vLLM's other verbs

    @at_once
    def reset_prefix_cache(self):
        """True: samples from here on compute their prompts themselves. New weights need no call:
        what other weights have computed is never taken."""
        self.engine.reset_prefix_cache()
        return True

    @at_once
    def reset_mm_cache(self):
        """True: there is no cache of pictures to reset."""
        return True

    @at_once
    def reset_encoder_cache(self):
        """True: there is no cache of an encoder to reset."""
        return True

    @at_once
    def sleep(self, level=1):
        """Accepted: the engine's memory is shared with training, nothing is given back."""
        del level

    @at_once
    def wake_up(self, tags=None):
        """Accepted: sleep has put nothing aside."""
        del tags

    @at_once
    def shutdown(self):
        """Forgets the adapters that adapter_path loaded."""
        with self._lock:
            self._tenants.settle()
            stale = tuple(tenant for _, tenant in self._tenants.loaded.values())
            stale += self._tenants.stale
            vars(self._tenants).update(loaded={}, stale=stale)  # no handler runs in between
            self._delete_stale()


class vLLMSampler(TorchSampler):  # noqa: N801 (ModelScope's name)
    """TorchSampler under the name that scripts written for vLLM use."""
