"""The scripts of the source documents for one device, as they are: only model and data ids lead to
local files, by TWINKLE_MODEL_ID_ALIASES and TWINKLE_DATASET_ID_ALIASES."""

import math
import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("engine_built")

# "Runtime Modes", section "Single GPU".
SINGLE_GPU = """
from twinkle.model import TransformersModel
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta

def train():
    dataset = Dataset(dataset_meta=DatasetMeta('ms://swift/self-cognition'))
    dataset.set_template('Template', model_id='ms://Qwen/Qwen3.5-4B')
    dataset.encode()
    
    dataloader = DataLoader(dataset=dataset, batch_size=8)
    model = TransformersModel(model_id='ms://Qwen/Qwen3.5-4B')
    
    for batch in dataloader:
        model.forward_backward(inputs=batch)
        model.clip_grad_and_step()

if __name__ == '__main__':
    train()
"""  # noqa: W293

# "Qwen3.5 Training Best Practices", section 2, without the mesh of eight devices.
BEST_PRACTICES = """
from peft import LoraConfig
from tqdm import tqdm

import twinkle
from twinkle import DeviceMesh, get_device_placement, get_logger
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.preprocessor import SelfCognitionProcessor

# Use torchrun mode
twinkle.initialize(mode='local')

logger = get_logger()


def eval(model):
    # Validation set: 100 samples
    dataset = Dataset(dataset_meta=DatasetMeta('ms://swift/self-cognition', data_slice=range(100)))
    dataset.set_template('Qwen3_5Template', model_id='ms://Qwen/Qwen3.5-4B')
    dataset.map(SelfCognitionProcessor('twinkle LLM', 'ModelScope Community'))
    dataset.encode()
    dataloader = DataLoader(dataset=dataset, batch_size=8)
    for step, batch in tqdm(enumerate(dataloader)):
        model.forward_only(inputs=batch)
        model.calculate_loss()
    metrics = model.calculate_metric(is_training=False)
    return metrics


def train():
    # Training set: 1000 samples
    dataset = Dataset(dataset_meta=DatasetMeta('ms://swift/self-cognition', data_slice=range(1000)))
    # Set template to prepare encoding
    dataset.set_template('Qwen3_5Template', model_id='ms://Qwen/Qwen3.5-4B')
    # Preprocess: replace placeholders in self-cognition data
    dataset.map(SelfCognitionProcessor('twinkle LLM', 'ModelScope Community'))
    # Encode dataset
    dataset.encode()
    # Global batch size = 8; each of the 8 GPUs processes 1 sample
    dataloader = DataLoader(dataset=dataset, batch_size=8)
    # Load model
    model = TransformersModel(model_id='ms://Qwen/Qwen3.5-4B')
    model.model._no_split_modules = {'Qwen3_5DecoderLayer'}

    lora_config = LoraConfig(r=8, lora_alpha=32, target_modules='all-linear')

    # Add LoRA adapter named 'default'
    # Comment this out to switch to full-parameter training
    model.add_adapter_to_model('default', lora_config, gradient_accumulation_steps=2)
    # Configure optimizer for LoRA
    model.set_optimizer(optimizer_cls='AdamW', lr=1e-4)
    # Configure learning rate scheduler
    model.set_lr_scheduler(
        scheduler_cls='CosineWarmupScheduler', num_warmup_steps=5, num_training_steps=len(dataloader))
    logger.info(get_device_placement())
    # Print training config
    logger.info(model.get_train_configs())
    logger.info(f'Total steps: {len(dataloader)}')
    loss_metric = 99.0
    # LoRA training: ~8G * 8 GPU memory
    # Full-parameter training: ~18G * 8 GPU memory
    for step, batch in enumerate(dataloader):
        # Forward + backward pass
        model.forward_backward(inputs=batch)
        # Gradient clipping + optimizer step
        model.clip_grad_and_step()
        if step % 20 == 0:
            # Print training metrics
            metric = model.calculate_metric(is_training=True)
            logger.info(f'Current is step {step} of {len(dataloader)}, metric: {metric}')
        if step > 0 and step % 40 == 0:
            # Periodic evaluation
            metrics = eval(model)
            logger.info(f'Eval metric: {metrics}')
            metrics['step'] = step
            # Save best checkpoint
            if loss_metric > float(metrics['loss']):
                model.save(f'checkpoint-{step}')
                loss_metric = float(metrics['loss'])
    model.save(f'last-checkpoint')


if __name__ == '__main__':
    train()
"""  # noqa: E501

# The README's script, whose Ray line becomes the one of its own comment ("local for torchrun").
README = """
from peft import LoraConfig
import twinkle
from twinkle import DeviceMesh, DeviceGroup
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.preprocessor import SelfCognitionProcessor

device_mesh = DeviceMesh.from_sizes(fsdp_size=1, dp_size=1)
# local for torchrun
twinkle.initialize(mode='local', global_device_mesh=device_mesh)


def train():
    # to load model from Hugging Face, use 'hf://...'
    base_model = 'ms://Qwen/Qwen2.5-7B-Instruct'
    # 1000 samples
    dataset = Dataset(dataset_meta=DatasetMeta('ms://swift/self-cognition', data_slice=range(1000)))
    # Set template to prepare encoding
    dataset.set_template('Template', model_id=base_model)
    # Preprocess the dataset to standard format
    dataset.map(SelfCognitionProcessor('twinkle LLM', 'ModelScope Community'))
    # Encode dataset
    dataset.encode()
    # Global batch size = 8, for GPUs, so 1 sample per GPU
    dataloader = DataLoader(dataset=dataset, batch_size=8, min_batch_size=8)
    # Use a TransformersModel
    model = TransformersModel(model_id=base_model, remote_group='default')

    lora_config = LoraConfig(
        r=8,
        lora_alpha=32,
        target_modules='all-linear'
    )

    # Add a lora to model, with name `default`
    # Comment this to use full-parameter training
    model.add_adapter_to_model('default', lora_config, gradient_accumulation_steps=2)
    # Add Optimizer for lora `default`
    model.set_optimizer(optimizer_cls='AdamW', lr=1e-4)
    # Add LRScheduler for lora `default`
    model.set_lr_scheduler(scheduler_cls='CosineWarmupScheduler', num_warmup_steps=5,
                           num_training_steps=len(dataloader))
    for step, batch in enumerate(dataloader):
        # Do forward and backward
        model.forward_backward(inputs=batch)
        # Step
        model.clip_grad_and_step()
        if step % 20 == 0:
            # Print metric
            metric = model.calculate_metric(is_training=True)
            print(f'Current is step {step} of {len(dataloader)}, metric: {metric}')
    model.save(f'last-checkpoint')


if __name__ == '__main__':
    train()
"""

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
    out = run(SINGLE_GPU, rows, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
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
