"""Reinforcement learning with verifiable rewards: GRPO on questions like those of GSM8K.

Rows: {"question": "...", "answer": "... #### 72"}

.venv/bin/python examples/grpo.py gsm8k.jsonl
"""

import argparse
from itertools import chain, islice, repeat

from twinkle import DataLoader, Dataset, DatasetMeta, LoraConfig, TorchSampler, TransformersModel
from twinkle.advantage import GRPOAdvantage
from twinkle.preprocessor import GSM8KProcessor
from twinkle.reward import GSM8KAccuracyReward

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--model", default="smollm2")
parser.add_argument("--output", default="outputs/grpo")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--max-tokens", type=int, default=256)
args = parser.parse_args()

dataset = Dataset(DatasetMeta(args.data))
dataset.map(GSM8KProcessor(system="Think step by step. End with #### and the number."))
batches = DataLoader(dataset=dataset, batch_size=4, shuffle=True)
model = TransformersModel(model_id=args.model)
model.add_adapter_to_model("default", LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
model.set_loss("GRPOLoss", epsilon=0.2)
model.set_optimizer("AdamW", lr=2e-5)
sampler = TorchSampler(model=model)  # samples with the model's own weights: no copy to update
params = {"num_samples": 8, "max_tokens": args.max_tokens, "logprobs": 1}

epochs = chain.from_iterable(repeat(batches))
for step, rows in enumerate(islice(epochs, args.steps), 1):
    groups = [response.sequences for response in sampler.sample(rows, params)]
    replies = list(chain.from_iterable(groups))
    chats = [
        {**row, "messages": [*row["messages"], {"role": "assistant", "content": reply.decoded}]}
        for row, group in zip(rows, groups, strict=True)
        for reply in group
    ]
    rewards = GSM8KAccuracyReward()(chats)
    model.forward_backward(
        inputs=replies,
        old_logps=[reply.logprobs for reply in replies],
        advantages=GRPOAdvantage()(rewards, num_generations=8).tolist(),
    )
    model.clip_grad_and_step(max_grad_norm=1.0)
    print(step, f"mean reward {sum(rewards) / len(rewards):.3f}")
print("saved", model.save("adapter", output_dir=args.output))
