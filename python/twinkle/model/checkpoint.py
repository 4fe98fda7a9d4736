"""Saving, loading and uploading: the engine writes weights, this adds what it does not know."""

import json
from pathlib import Path

from twinkle import checks
from twinkle.core import core
from twinkle.data_format.lora import warn_of_another_base
from twinkle.errors import NotFoundError, refuse_unknown, require
from twinkle.hub import HubOperation
from twinkle.model.settings import Settings
from twinkle.remote.decorate import remote_function
from twinkle.remote.how import at_once


class Checkpoints(Settings):
    """The part of TransformersModel that writes and reads files."""

    @at_once
    def get_state_dict(self, adapter_name=None):
        """{name: float32 tensor} of the trained weights: the adapter's, or the model's."""
        import torch

        with self._ranks.alike("its get_state_dict"):
            group = self._group(adapter_name)
        tensors = self.engine.inspect(tenant=self._tenant(group), tensors=True).result()["tensors"]
        own = [name for name in tensors if not name.startswith(("grad/", "optimizer/"))]
        return {name: torch.from_numpy(tensors[name]) for name in own}

    @at_once
    def save(
        self,
        name=None,
        output_dir="output",
        interval=1,
        save_optimizer=False,
        consumed_train_samples=0,
        adapter_name=None,
        max_shard_size=None,
        expert_format=None,
        **kwargs,
    ):
        """Writes output_dir/name (checkpoint-step-N by default) and returns that directory.

        Adapters as PEFT writes them, full models as Hugging Face does, and the tokenizer's files;
        with save_optimizer trainer_state.json too, which holds consumed_train_samples, and all that
        a run needs to go on bit for bit (the optimizer's options among it).
        interval: only every so many micro-batches (None otherwise).
        max_shard_size: of a full model's files, bytes or a text such as '2GB' or '500MiB'; None:
        5 GiB.
        expert_format: of an adapter, 'per_expert' for factors of every expert's linears, which
        older programs read; None: as today's peft reads them.
        InvalidError: weights that are not finite, a directory that holds other things or cannot be
        written, a max_shard_size for an adapter, an expert_format for a model or with
        save_optimizer; an older checkpoint stays then.
        """
        with self._checked("save", adapter_name) as group:
            refuse_unknown("model: save", kwargs)
            checks.integer("model: interval", interval, least=1)
            save_optimizer = checks.flag("model: save_optimizer", save_optimizer)
            name = f"checkpoint-step-{group.cur_step}" if name is None else name
            directory = _directory_of(name, output_dir)
            max_shard_bytes = checks.file_size("model: max_shard_size", max_shard_size)
            expert_format = checks.text("model: expert_format", expert_format, none=True) or ""
            state = group.loop.state(consumed_train_samples)
        if group.cur_step % interval:
            return None
        return self.engine.save(
            tenant=self._tenant(group),
            directory=directory,
            optimizer=save_optimizer,
            extra_json=json.dumps(state),
            max_shard_bytes=max_shard_bytes,
            expert_format=expert_format,
        ).result()

    @at_once
    def load(self, name, output_dir=None, load_optimizer=False, token=None, adapter_name=None):
        """Reads what save wrote, from output_dir/name, or from name, a directory or hub id.

        Gradients that were accumulated are forgotten. load_optimizer: its state and options (lr,
        weight_decay, ...: the saved ones, whatever is set), the schedule's step and the counters
        come too; else the optimizer begins anew and the schedule stays where it is. token: of a
        private repository of a hub. An adapter trained on a base of another name is taken with a
        warning if its shapes fit. NotFoundError: there is no such directory, or no optimizer in it;
        InvalidError: other shapes, a damaged file, another optimizer or schedule, or a schedule of
        other arguments, than is set; nothing changes then.
        """
        with self._checked("load", adapter_name) as group:
            checks.text("model: token", token, none=True)
            load_optimizer = checks.flag("model: load_optimizer", load_optimizer)
            given = _path("name", name) if output_dir is None else _directory_of(name, output_dir)
            directory = HubOperation.download_model(given, token=token)
            state = group.loop.state_in(directory) if load_optimizer else None
        self._load(group, directory, state)

    @at_once
    def resume_from_checkpoint(self, checkpoint_dir, *, resume_only_model=False, adapter_name=None):
        """Goes on where `save(save_optimizer=True)` stopped.

        Returns what was saved of {cur_step, consumed_train_samples, gradient_accumulation_steps}:
        micro-batches, samples and micro-batches of a step; 0, 0 and the model's own where nothing
        was. resume_only_model: weights alone; the optimizer begins anew, its options and the
        model's counters stay. NotFoundError, InvalidError and warning: as load's.
        """
        with self._checked("resume_from_checkpoint", adapter_name) as group:
            directory = _checkpoint(checkpoint_dir)
            resume_only_model = checks.flag("model: resume_only_model", resume_only_model)
            state_in = core().loop_state_in if resume_only_model else group.loop.state_in
            state = state_in(directory)
        self._load(group, directory, None if resume_only_model else state)
        steps = "gradient_accumulation_steps"
        if not resume_only_model:
            group.set_gradient_accumulation_steps(state.get(steps))
        saved = {"cur_step": 0, "consumed_train_samples": 0, steps: getattr(group, steps)}
        return {name: state.get(name, default) for name, default in saved.items()}

    def _load(self, group, directory, state):
        """Reads a checkpoint's weights, and its optimizer unless `state`, the loop's, is None; the
        group takes it."""

        def loaded(loop, _):
            return loop.with_weights() if state is None else loop.with_state(state)

        read = {"directory": directory, "optimizer": state is not None}
        self._count(group, self.engine.load, loaded, **read)
        if group.config is not None:
            warn_of_another_base(directory, self.model_id, self.model_info["directory"])

    @remote_function(dispatch="all", execute="first", collect="first", lazy_collect=False)
    def upload_to_hub(self, checkpoint_dir, hub_model_id, hub_token=None, async_upload=True):
        """Pushes a directory to hf:// or ms:// (default), private; a Future if async_upload.

        NotAvailableError: the hub's package is missing; NotFoundError: the hub refuses, or cannot
        be reached."""
        directory = _checkpoint(checkpoint_dir)
        checks.text("model: hub_model_id", hub_model_id)
        checks.flag("model: async_upload", async_upload)
        push = HubOperation.async_push_to_hub if async_upload else HubOperation.push_to_hub
        return push(hub_model_id, directory, token=hub_token)


def _path(what, value):
    return checks.path(f"model: {what}", value)


def _checkpoint(directory):
    directory = _path("checkpoint_dir", directory)
    if not Path(directory).is_dir():
        raise NotFoundError(f"model: checkpoint_dir {directory} does not exist")
    return directory


def _directory_of(name, output_dir):
    """output_dir/name, which must be inside output_dir: a save replaces it as a whole."""
    name = Path(_path("name", name))
    require(
        name.parts and ".." not in name.parts and not name.is_absolute(),
        f"model: name is {str(name)!r}, it must name a directory inside output_dir, without '..'",
    )
    return str(Path(_path("output_dir", output_dir)) / name)
