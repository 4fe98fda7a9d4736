"""fsdp2.py of "Qwen3.5 Training Best Practices", but for its sizes; models and data are led to local
ones by TWINKLE_MODEL_ID_ALIASES and TWINKLE_DATASET_ID_ALIASES, and the mesh by MESH."""

# ruff: noqa
import json, os
from peft import LoraConfig
from tqdm import tqdm

import twinkle
from twinkle import DeviceMesh, get_device_placement, get_logger
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.preprocessor import SelfCognitionProcessor

# Build device_mesh: fsdp=4, dp=2, using 8 GPUs in total
device_mesh = DeviceMesh.from_sizes(**json.loads(os.environ["MESH"]))
# Use torchrun mode
twinkle.initialize(mode="local", global_device_mesh=device_mesh)

logger = get_logger()


def eval(model):
    # Validation set: 100 samples
    dataset = Dataset(dataset_meta=DatasetMeta("ms://swift/self-cognition", data_slice=range(18)))
    dataset.set_template("Template", model_id="ms://Qwen/Qwen3.5-4B")
    dataset.map(SelfCognitionProcessor("twinkle LLM", "ModelScope Community"))
    dataset.encode()
    dataloader = DataLoader(dataset=dataset, batch_size=8)
    for step, batch in tqdm(enumerate(dataloader)):
        model.forward_only(inputs=batch)
        model.calculate_loss()
    metrics = model.calculate_metric(is_training=False)
    return metrics


def train():
    # Training set: 1000 samples
    dataset = Dataset(dataset_meta=DatasetMeta("ms://swift/self-cognition", data_slice=range(80)))
    # Set template to prepare encoding
    dataset.set_template("Template", model_id="ms://Qwen/Qwen3.5-4B")
    # Preprocess: replace placeholders in self-cognition data
    dataset.map(SelfCognitionProcessor("twinkle LLM", "ModelScope Community"))
    # Encode dataset
    dataset.encode()
    # Global batch size = 8; each of the 8 GPUs processes 1 sample
    dataloader = DataLoader(dataset=dataset, batch_size=8)
    # Load model
    model = TransformersModel(model_id="ms://Qwen/Qwen3.5-4B")
    model.model._no_split_modules = {"Qwen3_5DecoderLayer"}

    lora_config = LoraConfig(r=8, lora_alpha=32, target_modules="all-linear")

    # Add LoRA adapter named 'default'
    # Comment this out to switch to full-parameter training
    model.add_adapter_to_model("default", lora_config, gradient_accumulation_steps=2)
    # Configure optimizer for LoRA
    model.set_optimizer(optimizer_cls="AdamW", lr=1e-4)
    # Configure learning rate scheduler
    model.set_lr_scheduler(
        scheduler_cls="CosineWarmupScheduler",
        num_warmup_steps=5,
        num_training_steps=len(dataloader),
    )
    logger.info(get_device_placement())
    # Print training config
    logger.info(model.get_train_configs())
    logger.info(f"Total steps: {len(dataloader)}")
    loss_metric = 99.0
    # LoRA training: ~8G * 8 GPU memory
    # Full-parameter training: ~18G * 8 GPU memory
    for step, batch in enumerate(dataloader):
        # Forward + backward pass
        model.forward_backward(inputs=batch)
        # Gradient clipping + optimizer step
        model.clip_grad_and_step()
        if step % 2 == 0:
            # Print training metrics
            metric = model.calculate_metric(is_training=True)
            logger.info(f"Current is step {step} of {len(dataloader)}, metric: {metric}")
        if step > 0 and step % 4 == 0:
            # Periodic evaluation
            metrics = eval(model)
            logger.info(f"Eval metric: {metrics}")
            metrics["step"] = step
            # Save best checkpoint
            if loss_metric > float(metrics["loss"]):
                model.save(f"checkpoint-{step}")
                loss_metric = float(metrics["loss"])
    model.save(f"last-checkpoint")


if __name__ == "__main__":
    train()
