"""MultiLoraTransformersModel: the training loop's verbs, each one request to a server."""

import json
import math
import time
from collections.abc import Mapping

from twinkle import checks
from twinkle.errors import InternalError, InvalidError, require
from twinkle.infra import current_run
from twinkle.logger import get_logger
from twinkle.seeding import stable_seed
from twinkle_client.records import Number, Outputs, Saved, Text
from twinkle_client.service import Served, name_of, rows_of

__all__ = ["MultiLoraTransformersModel"]


class MultiLoraTransformersModel(Served):
    """A model of a server, with the verbs of twinkle.model.MultiLoraTransformersModel.

    model_id: a name that is served, with or without ms:// or hf://. client: a TwinkleClient; that
    of init_twinkle_client by default. Every verb is one request, and returns when it is done. It
    works on the adapter that was added last, or on adapter_name=. A request that a broken line or a
    server's new start has cut is sent again, and done once.
    Arguments, results and defaults are those of the class there, but: arrays come as NumPy's, what
    is a class there is its name here, since a server runs no code of its clients, and settings of
    the constructor are the server's. Results have `.result`, too, which is the value itself.
    Every verb raises InvalidError for what the server refuses, with its words, and for an adapter
    that was not added; NotFoundError, ConflictError, BusyError and InternalError as the class
    there; NoServerError where nothing answers.
    """

    kind = "model"

    def __init__(self, model_id, client=None, **settings):
        super().__init__(model_id, client, **settings)
        self.adapter_name = None

    def _ask(self, verb, fields=(), adapter_name=None, **kwargs):
        adapter = adapter_name or self.adapter_name
        require(
            adapter,
            f"client: {verb} needs an adapter: call add_adapter_to_model(name, config) first, or "
            "pass adapter_name",
        )
        named = {"adapter_name": checks.text("client: adapter_name", adapter)}
        return self._send(verb, {**named, **dict(fields), **kwargs}, adapter)

    def _send(self, verb, fields, adapter):
        return self.client.connection.in_turn("POST", f"{self._path}/{verb}", fields, adapter)

    # ---- the adapter

    def add_adapter_to_model(self, adapter_name, config=None, *, save_dir=None, **kwargs):
        """Adds an adapter, of a LoraConfig (ours or peft's) or a dict of its fields; None: all
        weights are trained, where the server allows it. gradient_accumulation_steps: micro-batches
        of one step, 1 by default. save_dir has no effect: the server keeps checkpoints in its own
        folder."""
        if save_dir is not None:
            get_logger().info("client: save_dir has no effect: a server keeps its own folder")
        name = checks.text("client: adapter_name", adapter_name)
        seed = stable_seed(current_run().seed, "adapter", name)
        fields = {"config": _config_text(config), "seed": seed}
        self._ask("add_adapter_to_model", fields, name, **kwargs)
        self.adapter_name = name

    # ---- forward and backward

    def forward(self, inputs, **kwargs):
        """Scores a batch for training: Outputs, with logps [batch, longest] of float32."""
        return self._outputs("forward", inputs, kwargs)

    def forward_only(self, inputs, **kwargs):
        """Scores a batch; disable_lora=True: with the base model."""
        return self._outputs("forward_only", inputs, kwargs)

    def forward_backward(self, inputs, **kwargs):
        """Scores a batch and adds the loss's gradient: Outputs, with loss and logps. inputs: rows,
        or responses of sample(). kwargs: the loss's, such as advantages and old_logps."""
        return self._outputs("forward_backward", inputs, kwargs)

    def _outputs(self, verb, inputs, kwargs):
        return Outputs(self._ask(verb, {"inputs": rows_of(inputs)}, **kwargs)["result"])

    def calculate_loss(self, **kwargs):
        """The loss of the last forward or forward_only: a Number."""
        return Number(self._ask("calculate_loss", **kwargs)["result"])

    def backward(self, **kwargs):
        """Adds the gradient of the last calculate_loss."""
        self._ask("backward", **kwargs)

    # ---- the optimizer's steps

    def clip_grad_norm(self, max_grad_norm=1.0, norm_type=2, **kwargs):
        """Clips the accumulated gradients; their norm before, or None between boundaries."""
        return _norm(self._ask("clip_grad_norm", _limits(max_grad_norm, norm_type), **kwargs))

    def step(self, **kwargs):
        """One optimizer step at an accumulation boundary."""
        self._ask("step", **kwargs)

    def zero_grad(self, **kwargs):
        """Forgets the accumulated gradients at a boundary."""
        self._ask("zero_grad", **kwargs)

    def lr_step(self, **kwargs):
        """Moves the schedule on by one, after a step."""
        self._ask("lr_step", **kwargs)

    def clip_grad_and_step(self, max_grad_norm=1.0, norm_type=2, **kwargs):
        """The four in one request: the norm before clipping, or None between boundaries."""
        return _norm(self._ask("clip_grad_and_step", _limits(max_grad_norm, norm_type), **kwargs))

    # ---- settings and reports

    def set_loss(self, loss_cls, **kwargs):
        """A loss by its name, 'GRPOLoss', or twinkle.loss's class; kwargs are its options."""
        self._set("set_loss", "loss_cls", loss_cls, kwargs)

    def set_optimizer(self, optimizer_cls="AdamW", **kwargs):
        """An optimizer by its name, or torch.optim's class; kwargs are its options."""
        self._set("set_optimizer", "optimizer_cls", optimizer_cls, kwargs)

    def set_lr_scheduler(self, scheduler_cls, **kwargs):
        """A schedule by its name, or torch's class; kwargs are its options."""
        self._set("set_lr_scheduler", "scheduler_cls", scheduler_cls, kwargs)

    def set_template(self, template_cls, **kwargs):
        """A template by its name, for inputs that are Trajectories."""
        kwargs.setdefault("model_id", self.model_id)
        self._set("set_template", "template_cls", template_cls, kwargs)

    def set_processor(self, processor_cls, **kwargs):
        """An input processor by its name; it changes no result, the engine packs."""
        self._set("set_processor", "processor_cls", processor_cls, kwargs)

    def add_metric(self, metric_cls, is_training=None, **kwargs):
        """A metric by its name; is_training None: for both phases."""
        self._set("add_metric", "metric_cls", metric_cls, {"is_training": is_training} | kwargs)

    def apply_patch(self, patch_cls, **kwargs):
        """A patch by its name; the server refuses those that it does not have."""
        self._set("apply_patch", "patch_cls", patch_cls, kwargs)

    def _set(self, verb, field, given, kwargs):
        self._ask(verb, {field: name_of(field, given)}, **kwargs)

    def calculate_metric(self, is_training=True, **kwargs):
        """Outputs: the numbers since the last call."""
        answer = self._ask("calculate_metric", {"is_training": is_training}, **kwargs)
        return Outputs(answer["result"])

    def get_train_configs(self, **kwargs):
        """The adapter's settings, a Text."""
        return Text(self._ask("get_train_configs", **kwargs)["result"])

    def get_state_dict(self, **kwargs):
        """Outputs: {name: float32 array} of the trained weights."""
        return Outputs(self._ask("get_state_dict", **kwargs)["result"])

    # ---- checkpoints

    def save(self, name=None, **kwargs):
        """Writes a checkpoint on the server; its path, which load, sample and upload_to_hub take.
        save_optimizer: with all that a run needs to go on; consumed_train_samples goes with it.
        is_sampler: for sampling; older ones of the run go."""
        fields = {} if name is None else {"name": name}
        return Saved(self._ask("save", fields, **kwargs)["twinkle_path"])

    def load(self, name, **kwargs):
        """Reads a checkpoint: a twinkle:// path, or an id of a hub where the server allows it.
        load_optimizer: its state, schedule and counters, too."""
        self._ask("load", {"name": _path(name)}, **kwargs)

    def resume_from_checkpoint(self, name, *, resume_only_model=False, **kwargs):
        """Goes on where save(save_optimizer=True) stopped: Outputs with cur_step,
        consumed_train_samples and gradient_accumulation_steps."""
        fields = {"name": _path(name), "resume_only_model": resume_only_model}
        return Outputs(self._ask("resume_from_checkpoint", fields, **kwargs)["result"])

    def upload_to_hub(
        self, checkpoint_dir, hub_model_id, hub_token=None, async_upload=True, poll_interval=5.0
    ):
        """Has the server push a checkpoint to a hub, and waits for the end. hub_token: of the hub;
        the server keeps it in memory alone. async_upload has no effect. poll_interval: seconds.
        InternalError: the upload failed, with the hub's words."""
        del async_upload
        pause = checks.number("client: poll_interval", poll_interval, above=0)
        fields = {
            "checkpoint_dir": _path(checkpoint_dir),
            "hub_model_id": checks.text("client: hub_model_id", hub_model_id),
            "hub_token": checks.text("client: hub_token", hub_token, none=True),
        }
        upload = self._send("upload_to_hub", fields, None)["request_id"]
        get_logger().info(f"client: {hub_model_id} is being uploaded")
        while True:
            told = self.client.connection.get(f"{self._path}/upload_status/{upload}")
            if told["status"] == "completed":
                return
            if told["status"] == "failed":
                raise InternalError(f"client: the upload to {hub_model_id} failed: {told['error']}")
            time.sleep(pause)


def _limits(max_grad_norm, norm_type):
    """Both as JSON has them, which lacks infinity."""
    limits = {"max_grad_norm": max_grad_norm, "norm_type": norm_type}
    return {name: "inf" if each == math.inf else each for name, each in limits.items()}


def _norm(answer):
    """The norm of an answer, which says it as text."""
    told = answer["result"]
    return None if told in (None, "None") else Number(told)


def _path(given):
    """A checkpoint's path: a text, or what save returned, ModelScope's dict of it included."""
    given = given.get("twinkle_path") if isinstance(given, Mapping) else given
    return checks.text("client: the checkpoint", getattr(given, "twinkle_path", given))


def _config_text(config):
    """A LoraConfig as the route has it: JSON's text, with its type."""
    if config is None:
        return None
    if not isinstance(config, Mapping) and not hasattr(config, "to_dict"):
        raise InvalidError(
            f"client: config is {checks.short(config)}, it must be a LoraConfig or a dict; an "
            "adapter of yours is loaded by load(), from a checkpoint of the server or a hub"
        )
    fields = dict(config if isinstance(config, Mapping) else config.to_dict())
    for name, value in fields.items():
        fields[name] = sorted(value) if isinstance(value, (set, frozenset)) else value
    return json.dumps(fields | {"_TWINKLE_TYPE_": "LoraConfig"}, default=str)
