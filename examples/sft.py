"""Fine-tunes a LoRA adapter on rows of messages.

.venv/bin/python examples/sft.py my.jsonl --validation held_out.jsonl [--resume]
"""

import argparse
from itertools import chain, islice, repeat
from pathlib import Path

from twinkle import DataLoader, Dataset, DatasetMeta, LoraConfig, TransformersModel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("data")
parser.add_argument("--validation")
parser.add_argument("--model", default="smollm2")
parser.add_argument("--output", default="outputs/sft")
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
if Path(args.output, "state").exists() and not args.resume:
    parser.error(f"{args.output} holds an earlier run: --resume it, or name another --output")

batches = DataLoader(dataset=Dataset(DatasetMeta(args.data)), batch_size=8, shuffle=True)
model = TransformersModel(model_id=args.model)
model.add_adapter_to_model("default", LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
model.set_optimizer("AdamW", lr=1e-4)
done = 0
if args.resume:
    saved = model.resume_from_checkpoint(f"{args.output}/state")
    done = saved["cur_step"]
    batches.skip_consumed_samples(saved["consumed_train_samples"])

epochs = chain.from_iterable(repeat(batches))
for step, batch in enumerate(islice(epochs, max(0, args.steps - done)), done + 1):
    model.forward_backward(inputs=batch)  # the model's chat template makes tokens of the rows
    model.clip_grad_and_step(max_grad_norm=1.0)
    print(step, model.calculate_metric(is_training=True)["loss"])
    if step % 10 == 0 or step == args.steps:  # with the optimizer and the place in the data
        model.save("state", output_dir=args.output, save_optimizer=True, **batches.get_state())
if args.validation:
    for batch in DataLoader(dataset=Dataset(DatasetMeta(args.validation)), batch_size=8):
        model.forward_only(inputs=batch)
        model.calculate_loss()
    print("validation", model.calculate_metric(is_training=False)["loss"])
print("saved", model.save("adapter", output_dir=args.output))
