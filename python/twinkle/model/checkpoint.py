"""Saving, loading and uploading: the engine writes weights, this adds what it does not know."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from twinkle.errors import NotFoundError, refuse_unknown, require
from twinkle.model.settings import Settings
from twinkle.plugin import requires
from twinkle.template.template import resolve

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
    "generation_config.json",
)  # fmt: skip


class Checkpoints(Settings):
    """The part of TransformersModel that writes and reads files."""

    def get_state_dict(self, adapter_name=None):
        """{name: float32 tensor} of the trained weights: the adapter's, or the model's."""
        group = self._group(adapter_name)
        return _state_dict(self.engine, self._tenant(group))

    def save(
        self,
        name=None,
        output_dir="output",
        interval=1,
        save_optimizer=False,
        consumed_train_samples=0,
        adapter_name=None,
        **kwargs,
    ):
        """Writes output_dir/name (checkpoint-step-N by default) and returns that directory.

        Adapters as PEFT writes them, full models as Hugging Face does, the tokenizer's files, and
        trainer_state.json; with save_optimizer all that a run needs to go on bit for bit.
        interval: only every so many micro-batches (None otherwise).
        """
        refuse_unknown("model: save", kwargs)
        group = self._group(adapter_name)
        require(
            isinstance(interval, int) and interval >= 1,
            f"model: interval is {interval!r}, it must be at least 1",
        )
        if group.cur_step % interval:
            return None
        return _save(
            self.engine,
            self._tenant(group),
            _directory_of(name or f"checkpoint-step-{group.cur_step}", output_dir),
            save_optimizer,
            group.state(consumed_train_samples),
            self.facts["directory"],
        )

    def load(self, name, output_dir=None, load_optimizer=False, token=None, adapter_name=None):
        """Reads weights (and optimizer, schedule) from output_dir/name, a directory or hub id."""
        del token  # of a private hub repository: the hub's own log-in is used
        group = self._group(adapter_name)
        directory = str(name) if output_dir is None else _directory_of(name, output_dir)
        state = _load(self.engine, self._tenant(group), resolve(directory), load_optimizer)
        group.accumulated, group.just_stepped = 0, False
        if load_optimizer:
            group.set_state(state)

    def resume_from_checkpoint(self, checkpoint_dir, *, resume_only_model=False, adapter_name=None):
        """Goes on where `save(save_optimizer=True)` stopped.

        Returns {cur_step, consumed_train_samples, gradient_accumulation_steps}.
        resume_only_model: weights alone; the counters stay.
        """
        if not Path(checkpoint_dir).is_dir():
            raise NotFoundError(f"model: checkpoint_dir {checkpoint_dir} does not exist")
        group = self._group(adapter_name)
        state = _load(self.engine, self._tenant(group), str(checkpoint_dir), not resume_only_model)
        group.accumulated, group.just_stepped = 0, False
        if not resume_only_model:
            group.set_state(state)
            if "gradient_accumulation_steps" in state:
                group.set_gradient_accumulation_steps(state["gradient_accumulation_steps"])
        return {
            "cur_step": state.get("cur_step", 0),
            "consumed_train_samples": state.get("consumed_train_samples", 0),
            "gradient_accumulation_steps": state.get(
                "gradient_accumulation_steps", group.gradient_accumulation_steps
            ),
        }

    def upload_to_hub(self, checkpoint_dir, hub_model_id, hub_token=None, async_upload=True):
        """Pushes a directory to hf:// or ms:// (default), private; a Future if async_upload."""
        return _upload(checkpoint_dir, hub_model_id, hub_token, async_upload)


def _directory_of(name, output_dir):
    require(str(name) not in ("", ".", ".."), f"model: name is {name!r}, it must name a directory")
    return str(Path(output_dir) / name)


def _save(engine, tenant, directory, optimizer, state, model_directory):
    """Writes the checkpoint; returns its directory."""
    Path(directory).parent.mkdir(parents=True, exist_ok=True)
    written = engine.save(
        tenant=tenant, directory=directory, optimizer=optimizer, extra_json=json.dumps(state)
    ).result()
    for name in _TOKENIZER_FILES:
        source = Path(model_directory) / name
        if source.is_file():
            shutil.copyfile(source, Path(written) / name)
    return written


def _load(engine, tenant, directory, optimizer):
    """Reads a checkpoint into a tenant; returns what trainer_state.json kept of the loop."""
    text = engine.load(tenant=tenant, directory=directory, optimizer=optimizer).result()
    return json.loads(text) if text else {}


def _state_dict(engine, tenant):
    import torch

    tensors = engine.inspect(tenant=tenant, tensors=True).result()["tensors"]
    return {
        name: torch.from_numpy(value)
        for name, value in tensors.items()
        if not name.startswith(("grad/", "optimizer/"))
    }


def _upload(checkpoint_dir, hub_model_id, hub_token, async_upload):
    """Pushes to a private repository. NotAvailableError: the hub's package is missing."""
    if not Path(checkpoint_dir).is_dir():
        raise NotFoundError(f"model: checkpoint_dir {checkpoint_dir} does not exist")
    push = _push_hf if hub_model_id.startswith("hf://") else _push_ms
    repository = hub_model_id.split("://", 1)[-1]
    requires("huggingface_hub" if push is _push_hf else "modelscope", f"uploading {hub_model_id}")
    if not async_upload:
        return push(str(checkpoint_dir), repository, hub_token)
    pool = ThreadPoolExecutor(max_workers=1)
    future = pool.submit(push, str(checkpoint_dir), repository, hub_token)
    pool.shutdown(wait=False)
    return future


def _push_hf(directory, repository, token):
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    api.create_repo(repository, private=True, exist_ok=True)
    return str(api.upload_folder(repo_id=repository, folder_path=directory))


def _push_ms(directory, repository, token):
    from modelscope.hub.api import HubApi

    api = HubApi()
    if token:
        api.login(token)
    api.create_repo(repository, visibility="private", exist_ok=True)
    return str(api.upload_folder(repo_id=repository, folder_path=directory))
