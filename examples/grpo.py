"""Reinforcement learning with verifiable rewards: GRPO on questions like those of GSM8K.

Rows: {"question": "...", "answer": "... #### 72"}

.venv/bin/python examples/grpo.py gsm8k.jsonl
"""

import argparse
from itertools import chain, islice, repeat

from twinkle import DataLoader, Dataset, DatasetMeta, LoraConfig, TorchSampler, TransformersModel
from twinkle.advantage import GRPOAdvantage
from twinkle.preprocessor import GSM8KProcessor
from twinkle.reward import GSM8KAccuracyReward, GSM8KFormatReward

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
params = {"num_samples": 8, "max_tokens": args.max_tokens, "logprobs": 1, "temperature": 1.0}

for step, rows in enumerate(islice(chain.from_iterable(repeat(batches)), args.steps), 1):
    replies = [reply for response in sampler.sample(rows, params) for reply in response.sequences]
    chats = [reply.new_input_feature for reply in replies]  # rows with the reply as a message
    right, formed = GSM8KAccuracyReward()(chats), GSM8KFormatReward()(chats)
    rewards = [r + 0.2 * f for r, f in zip(right, formed, strict=True)]  # any answer is a start
    advantages = GRPOAdvantage()(rewards, num_generations=8).tolist()
    sampled = {"old_logps": [r.logprobs for r in replies], "temperature": params["temperature"]}
    model.forward_backward(inputs=replies, advantages=advantages, **sampled)
    model.clip_grad_and_step(max_grad_norm=1.0)
    mean = sum(rewards) / len(rewards)
    print(step, f"mean reward {mean:.3f}, right {sum(right):.0f} of {len(right)}")
print("saved", model.save("adapter", output_dir=args.output))
