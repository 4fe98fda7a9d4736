"""TransformersModel: the training loop's verbs, each an operation of the C++ engine."""

import itertools
import json
import threading
import time
from dataclasses import replace

from twinkle import checks
from twinkle.checkpoint_engine.mixin import SendsWeights
from twinkle.core import core, option_names
from twinkle.engine.arguments import clip_arguments
from twinkle.engine.batch import as_list, batch_of, warn_of_unlabelled
from twinkle.engine.engine import Engine
from twinkle.errors import refuse_unknown, require
from twinkle.infra import current_run, place
from twinkle.ledger import Ledger
from twinkle.loss.base import check_head, check_kwargs, engine_loss, evaluate
from twinkle.loss.old_logps import check_scores, warn_of_ratio
from twinkle.model import arguments, python_loss
from twinkle.model.adapters import Adapters
from twinkle.model.group import Group, Groups
from twinkle.model.inside import Inside
from twinkle.model.remote import of_all, of_batch, of_whole_batch
from twinkle.model.router_replay import padded_routes
from twinkle.model.sharing import sharing_options
from twinkle.model.together import Together
from twinkle.remote.decorate import remote_class

_numbers = itertools.count()  # counts this process's models, which all ranks make in one order


@remote_class(execute="all", listed=False, keep=("remote_group", "instance_id"))
class TransformersModel(SendsWeights, Adapters):
    """A causal language model: base weights, and adapters by name.

    model_id: local Hugging Face directory, .gguf file, ms://, hf:// or bare id.
    mixed_precision: 'bf16' (weights and activations) or 'no' (float32). Adapters, gradients and
    optimizer state are float32. Every method takes adapter_name; without it the only adapter is
    meant, or the one named 'default', or, with no adapters, the base model, all weights of which
    are then trained. Defaults: CrossEntropyLoss(reduction='sum'), AdamW with lr 1e-5 and
    weight_decay 0.01, Template(model_id), InputProcessor().
    Every method raises InvalidError for an adapter that is not there and for an argument that it
    cannot use (named, with its value), and changes nothing then. Here: NotFoundError, no
    such model, or no weights in it; InvalidError, a broken file, other shapes than config.json's, a
    family or rope kind that is not known, a device that is not there, a remote_group that
    initialize was not given; NotAvailableError, what this version does not have. The model runs on
    the device that TWINKLE_DEVICE says, else device_mesh, else the group, else on a GPU where there
    is one. kwargs: options of its engine, by their names in docs/options.md, such as token_budget
    or kv_tokens. What has a meaning for other engines alone is checked, and the log says so.
    """

    def __init__(
        self,
        model_cls=None,
        model_id=None,
        config=None,
        device_mesh=None,
        mixed_precision="bf16",
        strategy="accelerate",
        ddp_config=None,
        fsdp_config=None,
        grad_scaler_config=None,
        tokenizer_id=None,
        **kwargs,
    ):
        if model_id is None and isinstance(model_cls, str):  # TransformersModel('path')
            model_cls, model_id = None, model_cls
        require(
            model_id is not None,
            "model: model_id is missing: give a folder, a .gguf file, hf://owner/name or 'smollm2'",
        )
        self.model_id = str(checks.path("model: model_id", model_id))
        tokenizer_id = model_id if tokenizer_id is None else tokenizer_id
        self.tokenizer_id = str(checks.path("model: tokenizer_id", tokenizer_id))
        options = {name: kwargs.pop(name) for name in option_names() if name in kwargs}
        refuse_unknown("model: TransformersModel", kwargs, (*arguments.NAMES, *option_names()))
        checks.newest("model: revision", kwargs.get("revision"))
        replay = kwargs.get("enable_router_replay", False)
        replay = checks.flag("model: enable_router_replay", replay)
        arguments.check_model_cls(model_cls, self._value_head)
        self.mixed_precision = checks.text("model: mixed_precision", mixed_precision)
        for name in ("torch_dtype", "dtype"):
            arguments.check_dtype(mixed_precision, kwargs.get(name))
        if grad_scaler_config:
            arguments.refuse_grad_scaler("grad_scaler_config")
        self.device_mesh, self._device = place(self, device_mesh, kwargs.get("remote_group"))
        shared = sharing_options(self.device_mesh, strategy, ddp_config, fsdp_config)
        require(
            not shared or options.get("gathered_bytes") is None,
            "model: gathered_bytes is given, but fsdp_config says how much stays gathered, too: "
            "leave one out",
        )
        arguments.check_kwargs_of_model(kwargs, self._device)
        engine = Engine(
            model_id,
            mixed_precision,
            device=self._device,
            device_mesh=self.device_mesh,
            value_head=self._value_head,
            **(options | shared),
        )
        self.engine, self._ranks = engine.operations, engine.ranks
        self.model_info = self.engine.model_info()
        require(
            not replay or self.model_info["num_routed_layers"],
            "model: enable_router_replay is True, but the model has no routed experts: leave it "
            "out",
        )
        arguments.check_config(config, self.model_info["config_json"])
        self.model = Inside(self.model_info)
        # The adapters, and the tenant of the base model as it is; what changes them holds the lock.
        groups = Groups({"": Group("", self._default_template())})
        self._tenants = Ledger(groups=groups, frozen=None)
        self._lock = threading.RLock()
        self._number = next(_numbers)

    # ---- forward and backward

    def _batch(self, group, inputs, task):
        features, info, template = as_list(inputs), self.model_info, group.get_template
        batch = batch_of(features, info, template, group.processor, task.gives == "embeddings")
        if engine_loss(group.loss) is not None and task.gives == "logps":
            core().refuse_own_tokens(batch.sequences)
        return batch

    def _together(self, inputs, check):
        """The Together of a call. check: a function that gives the group, the task and a loss's
        arguments, or None, as this process has been given them; where that fails on a rank, or its
        batch, all raise."""

        def make():
            group, task, loss_kwargs = check()
            return group, task, self._batch(group, inputs, task), loss_kwargs

        together = Together(self._ranks, make)  # every rank gets all logits
        together.task.check_size(together.whole, self.model_info["vocab_size"])
        return together

    def _scorer(self, group):
        """Names the policy in outputs, the same on all ranks."""
        return f"{current_run().worker_of or 'here'}/{self._number}/{group.name}"

    def _run_forward(self, method, inputs, adapter_name, temperature, kwargs, disable_lora=False):
        training = method == "forward"

        def check():
            task, _ = arguments.forward_kwargs(method, kwargs, temperature)
            group = self._group(adapter_name)
            checks.flag("model: disable_lora", disable_lora)
            return group, task.of(group, self._value_head), None

        together = self._together(inputs, check)
        group, task = together.group, together.task
        trains_all = disable_lora and group.has_optimizer  # the engine refuses it by its reason
        result = self._scored(
            self._tenant(group, training or trains_all),
            together,
            task,
            train=training,
            logits=task.logits or task.loss_logits or task.of_values,
            disable_lora=bool(disable_lora),
            routed_experts=task.routes,
        )
        together.outputs = together.model_output(together.scores(result))
        together.disable_lora = disable_lora and group.config is not None
        group.phase(training).together, group.mode = together, "train" if training else "eval"
        out = together.own_outputs(together.outputs, result)
        if not (task.logits or task.gives == "logits"):  # the loss alone has asked for them
            out.pop("logits", None)
        if "logps" in out:
            out["temperature"] = task.temperature
            if not together.disable_lora:
                out |= {"scored_by": self._scorer(group), "iters": group.iters}
        if task.routes:
            ids = result["routed_experts"]
            out["routed_experts"] = padded_routes(together.own, ids, self.model_info)
        return out

    def _scored(self, tenant, together, task, **asked):
        """The engine's result for this rank's sequences."""
        return self.engine.forward(
            tenant=tenant,
            sequences=task.sequences(together.own),
            temperature=task.temperature,
            entropy=together.group.loss.require_entropy,
            embedding=task.gives == "embeddings",
            **asked,
        ).result()

    @of_batch
    def forward(self, *, inputs, adapter_name=None, temperature=1.0, **kwargs):
        """Scores a batch for training, with its dropout. Then calculate_loss and backward.

        inputs: an InputFeature or Trajectory, a list of them, or sample responses. Returns
        ModelOutput: logps [batch, longest] float32, 0 where the label is ignored; num_tokens; the
        temperature and the policy that logps belong to.
        return_logits=True: also logits [batch, longest, vocabulary] float32, divided by the
        temperature, 0 where nothing was given; at most 1 GiB of them, padding and all ranks'
        sequences included.
        task='embedding': in place of logps embeddings [batch, width] float32, the final hidden
        state of each sequence's last token divided by its L2 norm; return_logits adds none to them.
        InvalidError: an empty batch, a
        token or label outside the vocabulary, labels that are their own tokens, a sequence beyond
        the model's positions, more logits.
        router_aux_loss_coef: as forward_backward's, for the backward.
        router_replay_action=RouterReplayAction.RECORD, of a model with routed experts: also
        routed_experts [batch, longest, layers with experts, k], where tokens went, -1 where nothing
        was given: rows of it are routed_experts of inputs.
        forward_backward does the same in one pass instead of two.
        """
        return self._run_forward("forward", inputs, adapter_name, temperature, kwargs)

    @of_batch
    def forward_only(
        self, *, inputs, adapter_name=None, temperature=1.0, disable_lora=False, **kwargs
    ):
        """Scores a batch. disable_lora: with the base model. Takes and returns what forward does.
        InvalidError: as forward's; disable_lora where all weights are trained."""
        return self._run_forward(
            "forward_only", inputs, adapter_name, temperature, kwargs, disable_lora
        )

    def _predictions(self, group, together):
        """The predictions of the weights that scored the batch, which have not changed since."""
        base = together.disable_lora
        tenant = self.frozen_tenant() if base else self._tenant(group, training=False)
        return together.predictions(self.engine, tenant)

    @of_whole_batch
    def calculate_loss(self, adapter_name=None, **kwargs):
        """The loss of the last forward (or forward_only), as the loss defines it: a float. The
        loss sees logits if it has require_logits, or of forward_only(return_logits=True).
        InvalidError: there was none since the last backward or forward_backward, or kwargs that
        the loss does not take, or that a metric refuses."""

        def check():
            group = self._group(adapter_name)
            training = group.mode == "train"
            together = group.phase(training).together
            require(
                together is not None,
                "model: calculate_loss needs a forward or forward_only before it",
            )
            together.task.check(group.loss)
            check_head(group.loss, group.num_labels, self._value_head)
            arguments.check_outputs(group.loss, together)
            check_kwargs(group.loss, kwargs)
            check_scores(kwargs, together.task.temperature, self._scorer(group))
            return (group, training, together), kwargs

        (group, training, together), of_ranks = self._ranks.agree("its loss", check)
        started, batch = time.perf_counter(), together.whole
        outputs, kwargs = together.outputs, together.joined(of_ranks, group)
        group.check_metrics(training, together, kwargs)
        learnt = python_loss.learnable(group.loss, outputs) if training else outputs
        value, loss_tokens = evaluate(group.loss, batch.tensors(), learnt, kwargs)
        together.loss, together.loss_kwargs = group.loss, kwargs
        outputs["loss"] = value.item()
        if not training:
            predict = lambda: self._predictions(group, together)  # noqa: E731
            numbers = {"loss_tokens": loss_tokens or 1, "started": started}
            group.accumulate_metrics(False, batch, outputs, predict, kwargs, **numbers)
        return value.item()

    @of_all
    def backward(self, adapter_name=None, gradient_accumulation_steps=None):
        """Adds the gradient of the last calculate_loss to the accumulated ones.
        gradient_accumulation_steps: from now on. InvalidError: no forward and calculate_loss came
        before, or a gradient is not finite."""
        with self._checked("backward", adapter_name) as group:
            together = group.train.together
            require(
                group.mode == "train" and together is not None and together.loss is not None,
                "model: backward needs forward and calculate_loss before it",
            )
            require(
                together.loss is group.loss,
                "model: the loss was set anew after calculate_loss: call calculate_loss again",
            )
            group.loop.with_accumulation(gradient_accumulation_steps)
        group.check_metrics(True, together, together.loss_kwargs)
        group.set_gradient_accumulation_steps(gradient_accumulation_steps)
        task = replace(together.task, logits=False)  # nobody sees them here
        task = task.of(group, self._value_head)
        self._accumulate(together, task, together.loss_kwargs)

    @of_batch
    def forward_backward(
        self,
        *,
        inputs,
        adapter_name=None,
        micro_batch_size=None,
        temperature=1.0,
        gradient_accumulation_steps=None,
        **kwargs,
    ):
        """Scores a batch and adds the loss's gradient to the accumulated ones: one micro-batch.

        kwargs are the loss's, and the metrics see them. micro_batch_size: sequences per call of a
        loss of your own in Python; twinkle.loss's see the batch whole, and the engine divides the
        work. return_logits, task: as forward's; with task='embedding' the loss is one in Python
        with require_logps = False, and one label may stand for a sequence. A loss with
        require_logits takes at most 1 GiB of logits a call, as return_logits.
        gradient_accumulation_steps: from now on.
        router_aux_loss_coef, of a model with routed experts: their auxiliary loss learns, too, with
        this coefficient for each of num_tokens (docs/training.md); loss is told without it.
        Returns ModelOutput: loss (as the loss defines it), logps [batch, longest], num_tokens, and
        aux_loss, without its coefficient, where that is above 0.
        InvalidError: an empty batch, a token or label outside the vocabulary, labels that are their
        own tokens, a sequence beyond the model's positions, a loss or gradient that is not finite,
        kwargs that the loss does not take or that a metric refuses, old_logps of a reply that was
        sampled at another temperature, ref_outputs of this policy after a step of its own; the
        accumulated gradients stay then.
        """

        def check():
            task, loss_kwargs = arguments.forward_kwargs("forward_backward", kwargs, temperature)
            checks.integer("model: micro_batch_size", micro_batch_size, least=1, none=True)
            group = self._group(adapter_name)
            group.loop.with_accumulation(gradient_accumulation_steps)
            check_kwargs(group.loss, loss_kwargs)
            check_scores(loss_kwargs, task.temperature, self._scorer(group))
            task.check(group.loss)
            check_head(group.loss, group.num_labels, self._value_head)
            return group, task.of(group, self._value_head), loss_kwargs

        together = self._together(inputs, check)
        group = together.group
        group.check_metrics(True, together, together.given)
        if together.task.gives in ("logps", "values"):
            warn_of_unlabelled(together.whole)
        group.set_gradient_accumulation_steps(gradient_accumulation_steps)
        group.mode = "train"
        return self._accumulate(together, together.task, together.given, micro_batch_size)

    def _accumulate(self, together, task, loss_kwargs, micro_batch_size=None):
        """loss_kwargs: of all ranks."""
        group, started = together.group, time.perf_counter()
        tenant, loss, name = self._tenant(group), group.loss, engine_loss(group.loss)

        def learn(sequences, name, options):
            return group.run(
                self.engine.forward_backward,
                group.with_micro_batch,
                tenant=tenant,
                sequences=sequences[together.rows],
                loss=name,
                loss_options=json.dumps(options),
                temperature=task.temperature,
                logits=task.logits,
                router_aux_loss_coef=task.router_aux_loss_coef,
            )

        by_engine = name is not None and not task.of_values
        if by_engine:
            inputs = loss.engine_inputs(together.whole.tensors(), **loss_kwargs)
            sequences = together.whole.with_extras(inputs, task.sequences(together.whole))
            mine = learnt = learn(sequences, name, loss.engine_options(**loss_kwargs))
            value, loss_tokens = mine["loss"], mine["num_tokens"]
        else:
            logits = task.loss_logits or task.of_values
            mine = self._scored(tenant, together, task, train=True, logits=logits)
            value, counts, sequences = python_loss.evaluate_in_parts(
                together, loss_kwargs, micro_batch_size, together.scores(mine)
            )
            loss_tokens = sum(counts) or 1  # the value's: a mean of means is one mean
            numbers = {"num_tokens": sum(count or 1 for count in counts)}
            learnt = learn(sequences, "LinearLoss", numbers)
            if task.loss_logits:  # the second pass was given their gradients alone
                mine = {**mine, "logits": mine["logits"] if task.logits else []}
            elif not task.of_values:
                mine = learnt
        scores = together.scores(mine)
        if by_engine and task.gives != "logits":
            warn_of_ratio(group, sequences, scores["logps"])
        outputs = together.model_output(scores, value)
        if task.router_aux_loss_coef:
            outputs["aux_loss"] = learnt["aux_loss"]
        predict = lambda: together.predictions(self.engine, tenant)  # noqa: E731
        numbers = {"loss_tokens": loss_tokens, "started": started}
        group.accumulate_metrics(True, together.whole, outputs, predict, loss_kwargs, **numbers)
        return together.own_outputs(outputs, mine)

    # ---- the optimizer's steps

    @of_all
    def clip_grad_norm(self, max_grad_norm=1.0, norm_type=2, adapter_name=None):
        """Divides the accumulated gradients by the token count and clips them to max_grad_norm (not
        at all by 0 and inf); their norm before. step or zero_grad comes next: until then a
        forward_backward is refused with a ConflictError.

        Like step, zero_grad and lr_step it does nothing between accumulation boundaries (None).
        InvalidError: a negative limit. ConflictError: nothing is accumulated.
        """
        with self._checked("clip_grad_norm", adapter_name) as group:
            limits = clip_arguments("model", max_grad_norm, norm_type)
        if group.just_stepped or not group.at_boundary:
            return None
        clipped = lambda loop, result: loop.with_clip(result["grad_norm"])  # noqa: E731
        self._count(group, self.engine.clip_grad_norm, clipped, **limits)
        return group.grad_norm

    @of_all
    def step(self, optim_params=None, adapter_name=None):
        """One optimizer step at an accumulation boundary, nothing between them.

        optim_params: {lr, weight_decay, eps, betas, ...} from now on; lr only without a schedule.
        InvalidError: no backward since the last step, or options that the optimizer refuses.
        """
        with self._checked("step", adapter_name) as group:
            arguments.require_backward(group)
            given = dict(checks.mapping("model: optim_params", optim_params, none=True))
            group.loop.step(given)
        self._step(group, given)

    def _step(self, group, given, limits=None, schedule=0):
        """True: there was one. limits: as of clip_arguments; None: it does not clip. schedule:
        steps of the schedule that are counted with it."""
        if not group.at_boundary:
            return False
        request, lr = group.loop.step(given)
        stepped = lambda loop, done: loop.with_step(given, done["grad_norm"], schedule)  # noqa: E731
        self._count(group, self.engine.step, stepped, **request, **(limits or {}))
        for metric in group.train.metrics:
            metric.on_step(grad_norm=group.grad_norm, lr=lr, iters=group.iters)
        return True

    @of_all
    def zero_grad(self, adapter_name=None):
        """Forgets the accumulated gradients at a boundary; a step has done so already."""
        with self._checked("zero_grad", adapter_name) as group:
            between = group.accumulated and not group.at_boundary
        if not (between or group.just_stepped or group.tenant is None):
            # Also with nothing accumulated here: gradients may have come with a loaded optimizer.
            self._count(group, self.engine.zero_grad, lambda loop, _: loop.without_gradients())

    @of_all
    def lr_step(self, adapter_name=None):
        """Moves the schedule on by one, after a step."""
        group = self._group(adapter_name)
        group.loop = group.loop.with_lr_step()

    @of_all
    def clip_grad_and_step(
        self, max_grad_norm=1.0, norm_type=2, gradient_accumulation_steps=None, adapter_name=None
    ):
        """clip_grad_norm, step, zero_grad and lr_step in one. Returns the norm before clipping, or
        None between boundaries. max_grad_norm: 0, None and inf do not clip.
        gradient_accumulation_steps: from now on. InvalidError: no backward since the last step."""
        with self._checked("clip_grad_and_step", adapter_name) as group:
            max_grad_norm = 0.0 if max_grad_norm is None else max_grad_norm
            limits = clip_arguments("model", max_grad_norm, norm_type)
            group.loop.with_accumulation(gradient_accumulation_steps)
            arguments.require_backward(group)
        group.set_gradient_accumulation_steps(gradient_accumulation_steps)
        return group.grad_norm if self._step(group, {}, limits, schedule=1) else None
