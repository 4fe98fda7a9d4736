"""Tenant: an owner's operations."""

import itertools

import numpy as np

from twinkle import checks
from twinkle.core import core
from twinkle.engine.arguments import as_json, clip_arguments, features_of, params_of, room_for
from twinkle.engine.batch import Batch, as_list
from twinkle.engine.future import Future, Result
from twinkle.engine.sampling import engine_params, response_of, routes_shape
from twinkle.engine.stream import TokenStream
from twinkle.errors import refuse_unknown, require
from twinkle.infra import current_run
from twinkle.loss.old_logps import Compared, warn_of_ratio
from twinkle.seeding import stable_seed

_OWN_FIELDS = {"tenant", "sequences", "loss", "loss_options"}  # a tenant makes these itself


class Tenant:
    """One tenant of an engine. Each method submits an operation and returns its Future.

    inputs are lists of InputFeatures: input_ids [L] integers; labels [L], already shifted
    (labels[t] is the token after t, -100 where nothing is scored); optionally attention_mask [L]
    (0: the position is dropped), loss_scale [L], weights of the labels, and, of a model with routed
    experts, routed_experts, which tokens go to in place of those that its routers would choose (as
    forward returns them; -1: theirs; the last token's may be left out). Trajectories with
    `messages` are encoded with the model's own template. A packed input, whose position_ids restart
    at 0, counts as one input per sample. Wrong arguments raise at once, later errors are raised by
    the Future; an operation that fails changes nothing.
    """

    def __init__(self, engine, name):
        self.engine = engine
        self.name = name
        self._core = engine.operations
        self._num_samples = itertools.count()
        self._compared = Compared()

    def forward(self, inputs, *, loss=None, **options):
        """Scores inputs; no state changes. loss: the name of one of the engine's losses, whose
        value is returned. options: its inputs and options, as forward_backward's, and these:

        disable_lora=True: with the base model. temperature=1.0, above 0, divides the logits.
        entropy=True: also returns the entropy of each scored token's distribution, in nats.
        train=True: with the dropout of the next forward_backward. logits=True, embedding=True,
        routed_experts=True: also returns them. Future of a Result:

        loss: None, or as forward_backward's; logps: list of float32 arrays [L], log p(label) in
        nats, 0 where the label is -100; num_tokens: scored tokens, or as forward_backward's; and on
        request: entropies, shaped as logps; logits, a list of float32 arrays [tokens, vocabulary]
        for all tokens that attention_mask keeps, divided by the temperature; embeddings, a list of
        float32 arrays [width], the last token's final hidden state divided by its L2 norm;
        routed_experts, a list of int32 arrays [tokens, layers with experts, num_experts_per_tok],
        where all tokens that attention_mask keeps went, ascending, as inputs may have them.
        InvalidError: an empty batch, a token or label outside the vocabulary, more than 1 GiB of
        logits; a wrong loss, option or extra.
        """

        def make():
            batch = self._batch(inputs)
            checks.text("engine: loss", loss, none=True)
            fields, extras = _parted("forward", options)
            if loss is None:
                refuse_unknown("engine: forward without a loss", extras, sorted(fields))
            fields |= {"sequences": batch.sequences, "loss": loss or ""}
            fields["loss_options"] = as_json("engine: extras", _add_extras(batch, loss, extras))
            return (batch, self._made("forward", fields)), None

        (batch, operation), _ = self.engine.ranks.agree("its forward", make)
        future = self._core.submit(operation)

        shape = routes_shape(self.engine, options.get("routed_experts"))

        def convert(result):
            out = _scores(batch, result if loss else {**result, "loss": None})
            if shape:
                out["routed_experts"] = [ids.reshape(shape) for ids in result["routed_experts"]]
            return out

        return Future(future, convert)

    def logprobs(self, inputs, **options):
        """As forward, but its Future gives only logps: a list of float32 arrays [L]."""
        future = self.forward(inputs, **options)
        return Future(future, lambda result: result["logps"])

    def forward_backward(
        self, inputs, loss="CrossEntropyLoss", *, embedding_grad=None, logits_grad=None, **options
    ):
        """Adds the loss's gradient to the accumulated gradients. loss: the name of one of the
        engine's losses. options: temperature and logits as forward's, and

        further inputs of the loss. A list with one item per input has an array [L] for each
        input, or a number for all its tokens (LinearLoss: grad, entropy_grad), or for itself
        (DPOLoss: ref_sums). Anything else is an option of the loss: reduction='mean',
        num_tokens=12. embedding_grad, with LinearLoss: d loss / d embedding, an array [width] for
        each input; labels then count only with a grad.
        logits_grad, with LinearLoss: d loss / d logits as forward returns them, an array [tokens,
        vocabulary] for each input; labels then do not count, and have no extras.
        router_aux_loss_coef, of a model with routed experts: adds this times their auxiliary loss,
        for each token that the step divides by, to what is differentiated (docs/training.md).
        Future of a Result: loss, as the loss defines it (CrossEntropyLoss: the sum of -log p over
        scored tokens); num_tokens, which the step will divide by; and, as from forward: logps,
        logits on request, and with LinearLoss entropies and embeddings if their gradients are
        given; aux_loss, without its coefficient, where that is above 0. InvalidError: as forward's,
        and a wrong loss, option or extra, a coefficient for a model that has no such loss.
        """

        def make():
            batch = self._batch(inputs)
            if embedding_grad is None and logits_grad is None:
                batch.warn_of_unlabelled()
            checks.text("engine: loss", loss)
            fields, extras = _parted("forward_backward", options)
            rest = _add_extras(batch, loss, extras)
            grads = {"embedding_grad": embedding_grad, "logits_grad": logits_grad}
            sequences = batch.with_grads(grads, set(extras) - set(rest))
            fields |= {"sequences": sequences, "loss": loss}
            fields["loss_options"] = as_json("engine: extras", rest)
            return (batch, sequences, self._made("forward_backward", fields)), None

        (batch, sequences, operation), _ = self.engine.ranks.agree("its forward_backward", make)
        future, compared = self._core.submit(operation), self._compared

        def convert(result):
            warn_of_ratio(compared, sequences, result["logps"])
            return _scores(batch, result)

        return Future(future, convert)

    def step(self, optimizer="AdamW", max_grad_norm=0.0, *, norm_type=2.0, divide=True, **options):
        """Divides the accumulated gradients by the accumulated token count, clips them to
        max_grad_norm (0 or inf: not at all), takes one optimizer step and zeroes them.

        divide=False takes the sums of the gradients as they are, as Tinker does. options: the
        optimizer's: lr, weight_decay, betas, eps, momentum, ... Future of a Result: grad_norm
        before clipping, num_tokens, step (how many have been taken). ConflictError: nothing is
        accumulated, or, with divide=False, clip_grad_norm has divided it.
        """

        def fields():
            name = checks.text("engine: optimizer", optimizer)
            text = as_json("engine: options", options)
            core().check_optimizer(name, text)
            limits = clip_arguments("engine", max_grad_norm, norm_type)
            return {"optimizer": name, "options": text, "divide": divide, **limits}

        return self._submit("step", Result, fields)

    def clip_grad_norm(self, max_grad_norm=1.0, *, norm_type=2.0):
        """Divides the accumulated gradients by the token count and clips them (0 or inf: not at
        all); step takes them as they are. Until it or zero_grad, a forward_backward is refused
        with a ConflictError: its gradients are sums, not means. Future of a Result like step's.
        ConflictError: nothing is accumulated."""
        limits = lambda: clip_arguments("engine", max_grad_norm, norm_type)  # noqa: E731
        return self._submit("clip_grad_norm", Result, limits)

    def zero_grad(self):
        """Forgets the accumulated gradients. Future of None."""
        return self._submit("zero_grad")

    def sample(self, prompts, sampling_params=None, *, version=0):
        """Continues prompts: a list of InputFeatures, or of Trajectories, which are encoded with
        the generation prompt. sampling_params: SamplingParams, a dict of its fields, or a list
        with one for each prompt. Without a seed, every prompt of every call draws its own from the
        run's seed and the tenant's name. version: whose weights, as publish() numbered them; 0:
        those that the tenant's earlier operations leave. They are kept to the end of the sample,
        whatever is trained meanwhile.

        Future of a list of SampleResponse, one per prompt: sequences (tokens, logprobs where asked
        for, stop_reason, and, unless the model comes without a tokenizer, decoded and
        new_input_feature), prompt_token_ids, prompt_logprobs where asked for. max_tokens=0 only
        scores the prompts. InvalidError: an empty prompt, a token outside the vocabulary, more
        tokens than the model's positions or the cache hold, parameters outside their ranges;
        NotFoundError: no such version.
        """

        def make():
            features = self._features(prompts)
            given = sampling_params if isinstance(sampling_params, list) else [sampling_params]
            require(
                len(given) in (1, len(features)),
                f"engine: sampling_params has {len(given)} entries for {len(features)} prompts, "
                "give one, or one for each",
            )
            params = [params_of(p) for p in given] * (len(features) if len(given) == 1 else 1)
            request, rooms = self._request(features, params, version)
            return (features, params, rooms, request), len(features)

        ranks = self.engine.ranks
        (features, params, rooms, request), counts = ranks.agree("its prompts", make)
        request["params"] = self._params(params, rooms, sum(counts[: ranks.rank]))
        future = self._core.sample(**request)
        template = self.engine.decoder()
        shape = routes_shape(self.engine, any(p.routed_experts for p in params))

        def convert(completions):
            return [
                response_of(feature, prompt, samples, p, template, shape)
                for feature, prompt, samples, p in zip(
                    features, request["prompts"], completions, params, strict=True
                )
            ]

        return Future(future, convert)

    def sample_stream(self, prompt, sampling_params=None, *, version=0):
        """Continues one prompt and returns a TokenStream: an iterator over Tokens (id, text,
        logprob, sequence, stop_reason) as they are sampled, whose result() is the SampleResponse
        that sample() gives for the same seed. With stop strings a token comes when none can begin
        in its text any more, or with the end of its sequence. Closing the stream, or dropping it,
        ends the sampling. InvalidError: as sample's; NotFoundError: no such version."""
        if not isinstance(prompt, dict):
            checks.refuse("engine: prompt", prompt, "an InputFeature or a Trajectory")
        params = params_of(sampling_params)
        template = self.engine.template()
        (feature,) = self._features([prompt])
        request, rooms = self._request([feature], [params], version)
        request["params"] = self._params([params], rooms, 0)
        shape = routes_shape(self.engine, params.routed_experts)
        return TokenStream(
            self._core.sample_stream(**request),
            lambda ids: template.decode(ids, skip_special_tokens=True),
            params.logprobs is not None,
            lambda completions: response_of(
                feature, request["prompts"][0], completions[0], params, template, shape
            ),
        )

    def publish(self):
        """Keeps the adapter's weights as they are here in the tenant's order, for samples that name
        their version, while training goes on. Future of the version, 1, 2, ... of this tenant.
        Costs nothing before the weights change, then a copy of them. InvalidError: a tenant without
        an adapter."""
        return self._submit("publish")

    def release(self, version):
        """Lets a published version go; samples that have begun with it keep it to their end. Future
        of None. NotFoundError: no such version is kept."""
        return self._submit("release", fields=lambda: {"version": version})

    def save(self, directory, *, extra=None, max_shard_size=None, **fields):
        """Writes the adapter (PEFT's files) or the model (Hugging Face's); with optimizer=True all
        that a run needs to go on bit for bit. The directory appears whole or not at all. extra: a
        text that load gives back. max_shard_size: of a model's files, bytes or a text such as
        '2GB' or '500MiB'; None: 5 GiB. version: of an adapter, one that was published; 0: as it is.
        expert_format: of an adapter, 'per_expert' for factors of every expert's gate_proj, up_proj
        and down_proj, which older programs read; None: as today's peft reads them, stacks
        (target_parameters). Future of the directory's path. InvalidError: weights that
        are not finite, a directory that holds other things or cannot be written, a max_shard_size
        for an adapter, a version or an expert_format with the optimizer; NotFoundError: no such
        version. An older checkpoint stays then."""
        return self._submit(
            "save",
            fields=lambda: {
                **fields,
                "directory": checks.path("engine: directory", directory),
                "extra_json": checks.text("engine: extra", extra, none=True, empty=True) or "",
                "max_shard_bytes": checks.file_size("engine: max_shard_size", max_shard_size),
            },
        )

    def load(self, directory, **fields):
        """Reads what save wrote. Accumulated gradients are forgotten, the optimizer begins anew;
        with optimizer=True both are read too. exact: to replay what followed the save, bit for bit.
        Future of save's extra. NotFoundError: a file is missing; InvalidError: it is of another
        model or shape, or, with exact, of an engine that computes by other means; nothing changes
        then."""
        return self._submit(
            "load",
            fields=lambda: {**fields, "directory": checks.path("engine: directory", directory)},
        )

    def inspect(self, tensors=False):
        """Future of a Result: checksums weights, gradients and optimizer, num_parameters, step,
        num_tokens (accumulated), and with tensors=True `tensors`, {name: float32 array}. Of the
        base model as it is: its weights. InvalidError: tensors is neither True nor False."""
        return self._submit("inspect", Result, lambda: {"tensors": tensors})

    def delete(self):
        """Forgets the tenant, after its earlier operations. Future of None."""
        return self._submit("delete")

    # ---- arguments

    def _made(self, name, fields):
        return core().Operation(name, tenant=self.name, **fields)

    def _submit(self, name, convert=lambda value: value, fields=dict):
        """A Future of an operation, whose fields every rank checks before any submits it."""
        with self.engine.ranks.alike(f"its {name}"):
            operation = self._made(name, fields())
        return Future(self._core.submit(operation), convert)

    def _batch(self, inputs):
        features = as_list(features_of("engine: inputs", inputs))
        if any("input_ids" not in feature for feature in features):
            features = self.engine.template().batch_encode(features)
        batch = Batch(features)
        info = self.engine.model_info()
        batch.check_routes(info["num_routed_layers"], info["num_experts_per_tok"])
        return batch

    def _request(self, features, params, version):
        """(the arguments of the engine's sample but for params, the tokens that fit behind each
        prompt)."""
        prompts = [
            np.asarray(checks.ids(f"engine: input_ids of prompts[{i}]", f["input_ids"]), np.int64)
            for i, f in enumerate(features)
        ]
        version = checks.integer("engine: version", version, 0, 2**63 - 1)
        stops = any(p.stop_texts for p in params)
        tokenizer = self.engine.template()._template.directory if stops else ""
        limit = self.engine.model_info()["max_positions"]
        rooms = [room_for(p, i, limit - len(prompts[i])) for i, p in enumerate(params)]
        request = {"prompts": prompts, "version": version, "tokenizer": tokenizer}
        return {"tenant": self.name, **request}, rooms

    def _params(self, params, rooms, begin):
        """The engine's params of a sample. begin: prompts of the ranks before this one."""
        run, call = current_run().seed, next(self._num_samples)  # counts calls that were right
        return [
            engine_params(p, room, stable_seed(run, "engine", self.name, call, begin + i))
            for i, (p, room) in enumerate(zip(params, rooms, strict=True))
        ]

    def _features(self, prompts):
        return [
            feature
            if "input_ids" in feature
            else self.engine.template().encode(feature, add_generation_prompt=True)
            for feature in as_list(features_of("engine: prompts", prompts))
        ]


def _scores(batch, result):
    """The engine's result for a user: arrays as long as the inputs; only what was asked for."""
    out = Result(loss=result["loss"], logps=batch.rows(result["logps"]))
    out["num_tokens"] = result["num_tokens"]
    if result["entropies"]:
        out["entropies"] = batch.rows(result["entropies"])
    for name in ("logits", "embeddings"):
        if result[name]:
            out[name] = result[name]
    if result["aux_loss"]:
        out["aux_loss"] = result["aux_loss"]
    return out


def _parted(operation, options):
    """(those that are the operation's own fields, the others)."""
    names = {*core().operation_fields(operation)} - _OWN_FIELDS
    fields = {name: options[name] for name in names & options.keys()}
    return fields, {name: value for name, value in options.items() if name not in fields}


def _add_extras(batch, loss, extras):
    """Adds the lists to the batch; the rest, which are options of a loss."""
    options = {}
    for name, value in extras.items():
        if isinstance(value, (list, tuple, np.ndarray)):
            batch.add_extra(name, value, core().per_sequence(loss, name))
        else:
            options[name] = value
    return options
