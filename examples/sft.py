"""Fine-tunes a LoRA adapter on rows of messages, with a validation set and states to resume from.

.venv/bin/python examples/sft.py my.jsonl --validation held_out.jsonl [--resume]
"""

import argparse
from pathlib import Path

from twinkle.data_format import LoraConfig
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--validation")
parser.add_argument("--model", default="smollm2")
parser.add_argument("--output", default="outputs/sft")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()


def batches_of(file, **options):
    dataset = Dataset(DatasetMeta(file))
    dataset.set_template("Template", model_id=args.model, max_length=1024)
    dataset.encode()  # for other rows, dataset.map("AlpacaProcessor") first
    return DataLoader(dataset=dataset, batch_size=8, **options)


batches = batches_of(args.data, shuffle=True)
model = TransformersModel(model_id=args.model)
model.add_adapter_to_model("default", LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
model.set_optimizer("AdamW", lr=1e-4)
model.set_lr_scheduler("CosineWarmupScheduler", num_warmup_steps=5, num_training_steps=args.steps)
step, state = 0, Path(args.output) / "state"
if args.resume:
    saved = model.resume_from_checkpoint(str(state))
    step = saved["cur_step"]
    batches.skip_consumed_samples(saved["consumed_train_samples"])

while step < args.steps:
    for batch in batches:
        model.forward_backward(inputs=batch)
        model.clip_grad_and_step(max_grad_norm=1.0)
        step += 1
        print(step, model.calculate_metric(is_training=True)["loss"])
        if step % 10 == 0:  # with the optimizer, the schedule and the place in the data
            model.save("state", output_dir=args.output, save_optimizer=True, **batches.get_state())
        if step == args.steps:
            break
if args.validation:
    for batch in batches_of(args.validation):
        model.forward_only(inputs=batch)
        model.calculate_loss()
    print("validation", model.calculate_metric(is_training=False)["loss"])
print("saved", model.save("adapter", output_dir=args.output))
