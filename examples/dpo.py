"""Teaches a model which of two replies to prefer: direct preference optimization (DPO).

Rows: {"prompt": "...", "chosen": "...", "rejected": "..."}, and the other forms of docs/training.md

.venv/bin/python examples/dpo.py pairs.jsonl
"""

import argparse
from itertools import chain, islice, repeat

from twinkle import DataLoader, Dataset, DatasetMeta, LoraConfig, TransformersModel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("data")
parser.add_argument("--model", default="smollm2")
parser.add_argument("--output", default="outputs/dpo")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--beta", type=float, default=0.1)
args = parser.parse_args()

dataset = Dataset(DatasetMeta(args.data))
dataset.set_template("Template", model_id=args.model)
dataset.encode()
batches = DataLoader(dataset=dataset, batch_size=4, shuffle=True)
model = TransformersModel(model_id=args.model)
model.add_adapter_to_model("default", LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
model.set_loss("DPOLoss", beta=args.beta)
model.add_metric("DPOMetric", is_training=True, beta=args.beta)
model.set_optimizer("AdamW", lr=5e-5)

epochs = chain.from_iterable(repeat(batches))
for step, rows in enumerate(islice(epochs, args.steps), 1):
    # The loss reads pairs of chats: chosen, rejected, chosen, rejected, ...
    pairs = [row[side] for row in rows for side in ("positive", "negative")]
    reference = model.forward_only(inputs=pairs, disable_lora=True)  # the base model
    model.forward_backward(inputs=pairs, ref_outputs=reference)
    model.clip_grad_and_step(max_grad_norm=1.0)
    metric = model.calculate_metric(is_training=True)
    print(step, *(f"{key} {metric[key]:.4f}" for key in ("loss", "rewards/margins")))
print("saved", model.save("adapter", output_dir=args.output))
