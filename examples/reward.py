"""Teaches a model to score replies: a reward model, an adapter with a head of one label.

Rows: {"prompt": "...", "chosen": "...", "rejected": "..."}, and the other forms of docs/training.md

.venv/bin/python examples/reward.py pairs.jsonl
"""

import argparse
from itertools import chain, islice, repeat

from twinkle import DataLoader, Dataset, DatasetMeta, LoraConfig, TransformersModel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("data")
parser.add_argument("--model", default="smollm2")
parser.add_argument("--output", default="outputs/reward")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--centre", type=float, default=0.01)
args = parser.parse_args()

dataset = Dataset(DatasetMeta(args.data))
dataset.set_template("Template", model_id=args.model)
dataset.encode()
batches = DataLoader(dataset=dataset, batch_size=4, shuffle=True)
model = TransformersModel(model_id=args.model)
adapter = LoraConfig(r=8, target_modules="all-linear", task_type="SEQ_CLS", num_labels=1)
model.add_adapter_to_model("default", adapter)
model.set_loss("RewardLoss", center_rewards_coefficient=args.centre)
model.add_metric("RewardMetric", is_training=True)
model.set_optimizer("AdamW", lr=1e-4)

epochs = chain.from_iterable(repeat(batches))
for step, rows in enumerate(islice(epochs, args.steps), 1):
    # The loss reads pairs of chats: chosen, rejected, chosen, rejected, ...
    pairs = [row[side] for row in rows for side in ("positive", "negative")]
    model.forward_backward(inputs=pairs)
    model.clip_grad_and_step(max_grad_norm=1.0)
    metric = model.calculate_metric(is_training=True)
    print(step, *(f"{key} {metric[key]:.4f}" for key in ("loss", "rewards/margins")))
print("saved", model.save("adapter", output_dir=args.output))
