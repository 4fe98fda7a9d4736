"""TransformersModel: the training loop's verbs, each an operation of the C++ engine."""

import itertools
import json
import threading
import time
from dataclasses import replace

from twinkle import checks
from twinkle.checkpoint_engine.mixin import SendsWeights
from twinkle.core import core, option_names
from twinkle.engine.batch import Batch, as_list
from twinkle.engine.engine import Engine
from twinkle.errors import InvalidError, refuse_unknown, require
from twinkle.infra import current_run, place
from twinkle.ledger import Ledger
from twinkle.loss.base import check_kwargs, engine_loss, evaluate
from twinkle.loss.old_logps import check_scores, warn_of_ratio
from twinkle.model.arguments import (
    NAMES,
    check_config,
    check_dtype,
    check_kwargs_of_model,
    check_model_cls,
    check_outputs,
    first_given,
    forward_kwargs,
    refuse_grad_scaler,
)
from twinkle.model.group import Group, Groups, check_accumulation
from twinkle.model.inside import Inside
from twinkle.model.predictions import predictions
from twinkle.model.python_loss import (
    evaluate_in_parts,
    learnable,
    with_extras,
    with_values,
)
from twinkle.model.remote import of_all, of_batch, of_whole_batch
from twinkle.model.router_replay import padded_routes
from twinkle.model.sharing import sharing_options
from twinkle.model.steps import Steps
from twinkle.model.together import Together, asked, model_output, own
from twinkle.remote.decorate import remote_class

_numbers = itertools.count()  # counts this process's models, which all ranks make in one order


@remote_class(execute="all", listed=False, keep=("remote_group", "instance_id"))
class TransformersModel(SendsWeights, Steps):
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
        checks.path("model: model_id", model_id)
        if tokenizer_id is not None:
            checks.path("model: tokenizer_id", tokenizer_id)
        dtype = first_given(kwargs.pop("torch_dtype", None), kwargs.pop("dtype", None))
        options = {name: kwargs.pop(name) for name in option_names() if name in kwargs}
        refuse_unknown("model: TransformersModel", kwargs, (*NAMES, *option_names()))
        checks.newest("model: revision", kwargs.get("revision"))
        replay = checks.flag(
            "model: enable_router_replay", kwargs.get("enable_router_replay", False)
        )
        check_model_cls(model_cls, self._value_head)
        checks.text("model: mixed_precision", mixed_precision)
        check_dtype(mixed_precision, dtype)
        if grad_scaler_config:
            refuse_grad_scaler("grad_scaler_config")
        self.device_mesh, self._device = place(self, device_mesh, kwargs.get("remote_group"))
        shared = sharing_options(self.device_mesh, strategy, ddp_config, fsdp_config)
        for name in shared:
            require(
                options.get(name) is None,
                f"model: {name} is given, but fsdp_config says how much stays gathered, too: leave "
                "one out",
            )
        check_kwargs_of_model(kwargs, self._device)
        self.model_id = str(model_id)
        self.tokenizer_id = str(tokenizer_id or model_id)
        self.mixed_precision = mixed_precision
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
        check_config(config, self.model_info["config_json"])
        self.model = Inside(self.model_info)
        # The adapters, and the tenant of the base model as it is; what changes them holds the lock.
        self._tenants = Ledger(
            groups=Groups({"": Group("", self._default_template())}), frozen=None
        )
        self._lock = threading.RLock()
        self._number = next(_numbers)

    # ---- forward and backward

    def _batch(self, group, inputs, task):
        features = as_list(inputs)
        if any("input_ids" not in feature for feature in features):
            features = group.get_template().batch_encode(features)
        features = group.processor(features)
        batch, info = Batch(features, marks=task.embedding), self.model_info
        batch.check_routes(info["num_routed_layers"], info["num_experts_per_tok"])
        if engine_loss(group.loss) is not None and not (task.embedding or task.values):
            core().refuse_own_tokens(batch.sequences)
        return batch

    def _together(self, inputs, check):
        """(group, task, Together) of a call. check: a function that gives the group, the task and a
        loss's arguments, or None, as this process has been given them; where that fails on a rank,
        or its batch, all raise."""
        checked = []

        def make():
            checked[:] = group, task, loss_kwargs = check()
            return self._batch(group, inputs, task), loss_kwargs, group

        together = Together(self._ranks, make)
        group, task, _ = checked
        task.check_size(together.whole, self.model_info["vocab_size"])  # every rank gets all logits
        return group, task, together

    def _scorer(self, group):
        """Names the policy in outputs, the same on all ranks."""
        return f"{current_run().worker_of or 'here'}/{self._number}/{group.name}"

    def _run_forward(self, method, inputs, adapter_name, temperature, kwargs, disable_lora=False):
        training = method == "forward"

        def check():
            task, _ = forward_kwargs(method, kwargs, temperature)
            group = self._group(adapter_name)
            checks.flag("model: disable_lora", disable_lora)
            return group, task.of(group.loss), None

        group, task, together = self._together(inputs, check)
        disable_lora = bool(disable_lora)
        trains_all = disable_lora and group.has_optimizer  # the engine refuses it by its reason
        result = self.engine.forward(
            tenant=self._tenant(group, training or trains_all),
            sequences=task.sequences(together.own),
            disable_lora=disable_lora,
            temperature=task.temperature,
            entropy=group.loss.require_entropy,
            train=training,
            logits=task.logits or task.loss_logits or task.values,
            embedding=task.embedding,
            **task.scoring,
        ).result()
        if task.values:
            result = with_values(together.own, result)
        outputs = model_output(None, together.whole, together.scores(result))
        status = group.status(training)
        status.together, status.outputs, status.task = together, outputs, task
        status.disable_lora = disable_lora and group.config is not None
        status.loss_kwargs = None
        group.mode = "train" if training else "eval"
        out = asked(task, own(outputs, together, result))
        if "logps" in out:
            out["temperature"] = task.temperature
            if not status.disable_lora:
                out |= {"scored_by": self._scorer(group), "iters": group.iters}
        if task.routes:
            ids = result["routed_experts"]
            out["routed_experts"] = padded_routes(together.own, ids, self.model_info)
        return out

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

    def _predictions(self, group, status):
        """The predictions of the weights that scored the batch, which have not changed since."""
        base = status.disable_lora
        tenant = self.frozen_tenant() if base else self._tenant(group, training=False)
        return predictions(self.engine, tenant, status.together)

    @of_whole_batch
    def calculate_loss(self, adapter_name=None, **kwargs):
        """The loss of the last forward (or forward_only), as the loss defines it: a float. The
        loss sees logits if it has require_logits, or of forward_only(return_logits=True).
        InvalidError: there was none since the last backward or forward_backward, or kwargs that
        the loss does not take, or that a metric refuses."""

        def check():
            group = self._group(adapter_name)
            training = group.mode == "train"
            status = group.status(training)
            if status.together is None:
                raise InvalidError(
                    "model: calculate_loss needs a forward or forward_only before it"
                )
            status.task.check(group.loss)
            check_outputs(group.loss, status)
            check_kwargs(group.loss, kwargs)
            check_scores(kwargs, status.task.temperature, self._scorer(group))
            return (group, training, status), kwargs

        (group, training, status), of_ranks = self._ranks.agree("its loss", check)
        started = time.perf_counter()
        batch, kwargs = status.together.whole, status.together.joined(of_ranks, group)
        group.check_metrics(training, batch, status.task, kwargs)
        outputs = learnable(group.loss, status.outputs) if training else status.outputs
        value, loss_tokens = evaluate(group.loss, batch.tensors(), outputs, kwargs)
        status.loss_kwargs, status.loss = kwargs, group.loss
        status.outputs["loss"] = value.item()
        if not training:
            group.accumulate_metrics(
                False,
                batch,
                status.outputs,
                lambda: self._predictions(group, status),
                loss_tokens=loss_tokens or 1,
                started=started,
                loss_kwargs=kwargs,
            )
        return value.item()

    @of_all
    def backward(self, adapter_name=None, gradient_accumulation_steps=None):
        """Adds the gradient of the last calculate_loss to the accumulated ones.
        gradient_accumulation_steps: from now on. InvalidError: no forward and calculate_loss came
        before, or a gradient is not finite."""
        with self._ranks.alike("its backward"):
            group = self._group(adapter_name)
            status = group.train
            if group.mode != "train" or status.together is None or status.loss_kwargs is None:
                raise InvalidError("model: backward needs forward and calculate_loss before it")
            require(
                status.loss is group.loss,
                "model: the loss was set anew after calculate_loss: call calculate_loss again",
            )
            check_accumulation(gradient_accumulation_steps, none=True)
        together = status.together
        group.check_metrics(True, together.whole, status.task, status.loss_kwargs)
        group.set_gradient_accumulation_steps(gradient_accumulation_steps)
        task = replace(status.task, logits=False).of(group.loss)  # nobody sees them here
        self._accumulate(group, together, status.loss_kwargs, None, task)

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
            task, loss_kwargs = forward_kwargs("forward_backward", kwargs, temperature, loss=True)
            checks.integer("model: micro_batch_size", micro_batch_size, least=1, none=True)
            check_accumulation(gradient_accumulation_steps, none=True)
            group = self._group(adapter_name)
            check_kwargs(group.loss, loss_kwargs)
            check_scores(loss_kwargs, task.temperature, self._scorer(group))
            task.check(group.loss)
            return group, task.of(group.loss), loss_kwargs

        group, task, together = self._together(inputs, check)
        loss_kwargs = together.given
        group.check_metrics(True, together.whole, task, loss_kwargs)
        if not task.embedding:
            together.whole.warn_of_unlabelled()
        group.set_gradient_accumulation_steps(gradient_accumulation_steps)
        group.mode = "train"
        return self._accumulate(group, together, loss_kwargs, micro_batch_size, task)

    def _accumulate(self, group, together, loss_kwargs, micro_batch_size, task):
        """loss_kwargs: of all ranks."""
        started = time.perf_counter()
        tenant = self._tenant(group)
        common = {"tenant": tenant, "temperature": task.temperature}
        sequences = ()
        if engine_loss(group.loss) is not None:
            sequences = with_extras(group.loss, together.whole, loss_kwargs)
            mine = group.run(
                self.engine.forward_backward,
                group.with_micro_batch,
                sequences=sequences[together.rows],
                loss=engine_loss(group.loss),
                loss_options=json.dumps(group.loss.engine_options(**loss_kwargs)),
                logits=task.logits,
                **task.learning,
                **common,
            )
            learnt, value, loss_tokens = mine, mine["loss"], mine["num_tokens"]
        else:
            mine = self.engine.forward(
                sequences=task.sequences(together.own),
                train=True,
                entropy=group.loss.require_entropy,
                embedding=task.embedding,
                logits=task.loss_logits or task.values,
                **common,
            ).result()
            if task.values:
                mine = with_values(together.own, mine)
            value, counts, learning = evaluate_in_parts(
                group.loss, together.whole, loss_kwargs, micro_batch_size, together.scores(mine)
            )
            loss_tokens = sum(counts) or 1  # of the value: a mean of means is one mean
            learnt = group.run(
                self.engine.forward_backward,
                group.with_micro_batch,
                sequences=learning[together.rows],
                loss="LinearLoss",
                loss_options=json.dumps({"num_tokens": sum(count or 1 for count in counts)}),
                logits=task.logits,
                **task.learning,
                **common,
            )
            if task.loss_logits:  # whose gradients are all that the second pass was given
                mine = {**mine, "logits": mine["logits"] if task.logits else []}
            elif not task.values:
                mine = learnt
        scores = together.scores(mine)
        if sequences:
            warn_of_ratio(group, sequences, scores["logps"])
        outputs = model_output(value, together.whole, scores)
        if task.learning:
            outputs["aux_loss"] = learnt["aux_loss"]
        group.accumulate_metrics(
            True,
            together.whole,
            outputs,
            lambda: predictions(self.engine, tenant, together),
            loss_tokens=loss_tokens,
            started=started,
            loss_kwargs=loss_kwargs,
        )
        return own(outputs, together, mine)
