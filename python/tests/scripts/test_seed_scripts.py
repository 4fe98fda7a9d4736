"""The scripts of the source documents for one device, as they are: only model and data ids lead to
local files, by TWINKLE_MODEL_ID_ALIASES and TWINKLE_DATASET_ID_ALIASES."""

import math
import os
import sys
from pathlib import Path

import pytest
import seed_scripts
from seed_scripts import with_sizes

pytestmark = pytest.mark.usefixtures("engine_built")

# On one device, where there is no group of workers.
MESH = "fsdp_size=4, dp_size=2"
BEST_PRACTICES = with_sizes(seed_scripts.BEST_PRACTICES, {MESH: "fsdp_size=1, dp_size=1"})
README = with_sizes(
    seed_scripts.README,
    {MESH: "fsdp_size=1, dp_size=1", "mode='ray', groups=device_group": "mode='local'"},
)

# As cookbook/transformers/fsdp2.py: goes on from a checkpoint, past the samples already seen.
RESUMING = """
from peft import LoraConfig

import twinkle
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.preprocessor import SelfCognitionProcessor

twinkle.initialize(mode='local')


def train(checkpoint=None, stop=None):
    dataset = Dataset(dataset_meta=DatasetMeta('ms://swift/self-cognition', data_slice=range(64)))
    dataset.set_template('Qwen3_5Template', model_id='ms://Qwen/Qwen3.5-4B', max_length=128)
    dataset.map(SelfCognitionProcessor('twinkle LLM', 'ModelScope Community'))
    dataset.encode(batched=True)
    dataloader = DataLoader(dataset=dataset, batch_size=8)
    model = TransformersModel(model_id='ms://Qwen/Qwen3.5-4B')
    lora_config = LoraConfig(r=8, lora_alpha=32, target_modules='all-linear')
    model.add_adapter_to_model('default', lora_config, gradient_accumulation_steps=2)
    model.set_optimizer(optimizer_cls='AdamW', lr=1e-4)
    model.set_lr_scheduler('CosineWarmupScheduler', num_warmup_steps=1, num_training_steps=4)
    consumed = 0
    if checkpoint:
        progress = model.resume_from_checkpoint(checkpoint)
        dataloader.resume_from_checkpoint(progress['consumed_train_samples'])
        consumed = progress['consumed_train_samples']
    losses = []
    for step, batch in enumerate(dataloader):
        losses.append(model.forward_backward(inputs=batch)['loss'])
        model.clip_grad_and_step()
        consumed += len(batch)
        if stop == step + 1:
            break
    path = model.save('first' if stop else 'second' if checkpoint else 'whole',
                      save_optimizer=True, consumed_train_samples=consumed)
    return losses, path


if __name__ == '__main__':
    whole, _ = train()
    first, path = train(stop=4)
    second, _ = train(checkpoint=path)
    assert len(whole) == 8, whole
    assert first + second == whole, (first, second, whole)
    print('equal')
"""


def self_cognition(count=24):
    return [
        {
            "query": f"Who are you ({i})?",
            "response": "I am {{NAME}}, made by {{AUTHOR}}.",
            "tag": "en",
        }
        for i in range(count)
    ]


TOLD = """
from twinkle.model import TransformersModel

forward_backward, step = TransformersModel.forward_backward, TransformersModel.clip_grad_and_step


def told_forward_backward(self, **arguments):
    out = forward_backward(self, **arguments)
    print("loss", out["loss"])
    return out


def told_step(self, **arguments):
    norm = step(self, **arguments)
    print("norm", norm)
    return norm


TransformersModel.forward_backward = told_forward_backward
TransformersModel.clip_grad_and_step = told_step
"""


def test_single_gpu_script(run, tmp_path):
    rows = [
        {
            "messages": [
                {"role": "user", "content": row["query"]},
                {"role": "assistant", "content": row["response"]},
            ]
        }
        for row in self_cognition()
    ]
    # The script says nothing; a module that Python loads before it does, of every verb it calls.
    (tmp_path / "sitecustomize.py").write_text(TOLD)
    out = run(seed_scripts.SINGLE_GPU, rows, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    losses, norms = ([], [])
    for line in out.stdout.splitlines():
        name, value = line.split()
        (losses if name == "loss" else norms).append(float(value))
    assert len(losses) == len(norms) == 3  # 24 rows by eights
    assert all(0 < value < math.inf for value in losses + norms), out.stdout
    assert losses[-1] < losses[0]  # the rows differ by a number


def test_best_practices_script_trains_evaluates_and_saves_what_peft_loads(
    run, tmp_path, tiny_llama_dir
):
    out = run(BEST_PRACTICES, self_cognition())
    assert "Total steps: 125" in out.stderr and "Eval metric" in out.stderr
    adapter = tmp_path / "output" / "last-checkpoint"
    names = {path.name for path in Path(adapter).iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert (tmp_path / "output" / "checkpoint-40").is_dir()
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    model = peft.PeftModel.from_pretrained(base, adapter)
    learned = [p for n, p in model.named_parameters() if "lora_B" in n]
    assert learned and all(bool(p.abs().max() > 0) for p in learned)


def test_readme_script(run, tmp_path):
    out = run(README, self_cognition())
    assert "Current is step 120 of 125, metric: {'loss': " in out.stdout
    assert (tmp_path / "output" / "last-checkpoint" / "adapter_model.safetensors").is_file()


def test_a_run_cut_in_two_equals_one_that_was_not(run):
    assert "equal" in run(RESUMING, self_cognition(64)).stdout
