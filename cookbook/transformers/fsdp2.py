"""Supervised fine-tuning of an adapter, with evaluation, the best checkpoint and resuming.

One device:
    python cookbook/transformers/fsdp2.py --model-id smollm2
Eight ranks, whose weights are shared by two and whose rows by four:
    torchrun --nproc_per_node 8 cookbook/transformers/fsdp2.py --fsdp-size 2 --dp-size 4
Going on after a stop:
    ... --resume-from-checkpoint output/last-checkpoint
"""

from peft import LoraConfig

import twinkle
from twinkle import DeviceMesh, get_device_placement, get_logger
from twinkle.cli import CLI
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.preprocessor import SelfCognitionProcessor

logger = get_logger()
args = CLI.from_args()
MODEL = args.model.model_id or "smollm2"
DATA = args.dataset.dataset_id or "examples/data/self_cognition.jsonl"
TRAINED, EVALUATED = args.training.train_samples or 1000, args.training.eval_samples or 100


def batches(num_rows):
    dataset = Dataset(dataset_meta=DatasetMeta(DATA, data_slice=range(num_rows)))
    dataset.set_template("Template", model_id=MODEL, max_length=args.template.max_length)
    name, author = args.extra.get("model_name", "Nova"), args.extra.get("model_author", "Sky Team")
    dataset.map(SelfCognitionProcessor(name, author))
    dataset.encode()
    return DataLoader(dataset=dataset, batch_size=args.training.batch_size)


def evaluate(model):
    for batch in batches(EVALUATED):
        model.forward_only(inputs=batch)
        model.calculate_loss()
    return float(model.calculate_metric(is_training=False)["loss"])


def save(model, name, dataloader):
    seen = dataloader.get_state()["consumed_train_samples"]
    model.save(
        name,
        output_dir=args.training.output_dir,
        save_optimizer=True,
        consumed_train_samples=seen,
    )


def main():
    mesh = DeviceMesh.from_sizes(fsdp_size=args.infra.fsdp_size, dp_size=args.infra.dp_size)
    twinkle.initialize(mode=args.infra.mode, global_device_mesh=mesh)
    dataloader = batches(TRAINED)
    model = TransformersModel(model_id=MODEL)
    model.add_adapter_to_model(
        args.lora.adapter_name,
        LoraConfig(**args.get_lora_args()),
        gradient_accumulation_steps=args.training.gradient_accumulation_steps,
    )
    model.set_optimizer(args.optimizer.optimizer_cls, lr=args.optimizer.learning_rate)
    model.set_lr_scheduler(
        "CosineWarmupScheduler", num_warmup_steps=5, num_training_steps=len(dataloader)
    )
    progress = {"cur_step": 0}
    if args.training.resume_from_checkpoint:
        progress = model.resume_from_checkpoint(args.training.resume_from_checkpoint)
        dataloader.resume_from_checkpoint(progress["consumed_train_samples"])
    logger.info(get_device_placement())
    logger.info(model.get_train_configs())

    best, first = float("inf"), 1 + progress["cur_step"]
    for step, batch in enumerate(dataloader, first):
        model.forward_backward(inputs=batch)
        model.clip_grad_and_step(max_grad_norm=args.optimizer.max_grad_norm)
        if step % args.training.log_interval == 0 or step == len(dataloader):
            logger.info(f"step {step}: {model.calculate_metric(is_training=True)}")
        if step % (args.training.eval_interval or 40) == 0 and (loss := evaluate(model)) < best:
            best = loss
            logger.info(f"step {step}: the evaluation's loss is {loss:.4f}, the least so far")
            save(model, f"checkpoint-{step}", dataloader)
    save(model, "last-checkpoint", dataloader)


if __name__ == "__main__":
    main()
