"""Tenant: an owner's operations."""

import itertools

from twinkle import checks
from twinkle.core import core
from twinkle.engine.arguments import clip_arguments, params_of
from twinkle.engine.batch import as_list, batch_of, warn_of_unlabelled
from twinkle.engine.future import Future, Result
from twinkle.engine.sampling import Prompts, routes_shape
from twinkle.engine.stream import TokenStream
from twinkle.errors import require
from twinkle.infra import current_run
from twinkle.loss.old_logps import Compared, warn_of_ratio
from twinkle.seeding import stable_seed


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
        A tenant whose adapter has a head of labels gives label_logits, a list of float32 arrays
        [num_labels], and no logps; its inputs have no labels.
        InvalidError: an empty batch, a token or label outside the vocabulary, more than 1 GiB of
        logits; a wrong loss, option or extra.
        """

        batch, _, future = self._scored("forward", inputs, loss, options, {})
        shape = routes_shape(self.engine, options.get("routed_experts"))

        def convert(result):
            out = Result(batch.scores(result if loss else {**result, "loss": None}))
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

        grads = {"embedding_grad": embedding_grad, "logits_grad": logits_grad}
        scored = self._scored("forward_backward", inputs, loss, options, grads)
        (batch, sequences, future), compared = scored, self._compared

        def convert(result):
            if not result.get("label_logits"):
                warn_of_ratio(compared, sequences, result["logps"])
            return Result(batch.scores(result))

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
            text = core().json_of("engine: options", options)
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
            asked = self._prompts(prompts, sampling_params, version)
            return asked, len(asked.features)

        ranks = self.engine.ranks
        asked, counts = ranks.agree("its prompts", make)
        request = self._request(asked, sum(counts[: ranks.rank]))
        future = self._core.sample(version=version, **request)
        template = self.engine.decoder()
        shape = routes_shape(self.engine, any(p.routed_experts for p in asked.params))
        return Future(future, lambda completions: asked.responses(completions, template, shape))

    def sample_stream(self, prompt, sampling_params=None, *, version=0):
        """Continues one prompt and returns a TokenStream: an iterator over Tokens (id, text,
        logprob, sequence, stop_reason) as they are sampled, whose result() is the SampleResponse
        that sample() gives for the same seed. With stop strings a token comes when none can begin
        in its text any more, or with the end of its sequence. Closing the stream, or dropping it,
        ends the sampling. InvalidError: as sample's; NotFoundError: no such version."""
        if not isinstance(prompt, dict):
            checks.refuse("engine: prompt", prompt, "an InputFeature or a Trajectory")
        params = params_of("engine", sampling_params)
        template = self.engine.template()
        asked = self._prompts([prompt], [params], version)
        stream = self._core.sample_stream(version=version, **self._request(asked, 0))
        shape = routes_shape(self.engine, params.routed_experts)

        def convert(completions):
            return asked.responses(completions, template, shape)[0]

        return TokenStream(stream, template, params.logprobs is not None, convert)

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

    def _submit(self, name, convert=lambda value: value, fields=dict):
        """A Future of an operation, whose fields every rank checks before any submits it."""
        with self.engine.ranks.alike(f"its {name}"):
            operation = core().Operation(name, tenant=self.name, **fields())
        return Future(self._core.submit(operation), convert)

    def _scored(self, name, inputs, loss, options, grads):
        """(the batch, its sequences, the compiled future) of a forward or a forward_backward.
        grads: of outputs, by name."""

        def make():
            features = as_list(inputs, "engine: inputs")
            batch = batch_of(features, self.engine.model_info(), self.engine.template)
            if name == "forward_backward" and all(grad is None for grad in grads.values()):
                warn_of_unlabelled(batch)
            fields = batch.operation(name, loss, options, grads)
            operation = core().Operation(name, tenant=self.name, **fields)
            return (batch, fields["sequences"], operation), None

        (batch, sequences, operation), _ = self.engine.ranks.agree(f"its {name}", make)
        return batch, sequences, self._core.submit(operation)

    def _prompts(self, prompts, given, version):
        checks.integer("engine: version", version, 0, 2**63 - 1)
        template = self.engine.template
        features = [
            f if "input_ids" in f else template().encode(f, add_generation_prompt=True)
            for f in as_list(prompts, "engine: prompts")
        ]
        params = [params_of("engine", p) for p in (given if isinstance(given, list) else [given])]
        require(
            len(params) in (1, len(features)),
            f"engine: sampling_params has {len(params)} entries for {len(features)} prompts, give "
            "one, or one for each",
        )
        params = params * len(features) if len(params) == 1 else params
        limit = self.engine.model_info()["max_positions"]
        return Prompts("engine: prompts", features, params, limit, template)

    def _request(self, prompts, begin):
        """The engine's arguments of a sample. begin: prompts of the ranks before this one."""
        run, call = current_run().seed, next(self._num_samples)  # counts calls that were right
        seed_of = lambda i: stable_seed(run, "engine", self.name, call, begin + i)  # noqa: E731
        return prompts.request(self.name, seed_of)
