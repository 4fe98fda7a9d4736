"""Reinforcement learning with verifiable rewards: GRPO on GSM8K's questions.

Rows: {"question": "...", "answer": "... #### 72"}

.venv/bin/python examples/grpo.py gsm8k.jsonl
"""

import argparse

from twinkle.advantage import GRPOAdvantage
from twinkle.data_format import LoraConfig, SamplingParams
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.preprocessor import GSM8KProcessor
from twinkle.reward import GSM8KAccuracyReward
from twinkle.sampler import TorchSampler

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
# The model's own engine samples: new weights serve the next token, and nothing is copied.
sampler = TorchSampler(model=model)
sampler.set_template("Template", model_id=args.model)
group = 8  # replies to each question, which are compared with each other
params = SamplingParams(num_samples=group, max_tokens=args.max_tokens, logprobs=1)
reward, advantage = GSM8KAccuracyReward(), GRPOAdvantage()

step = 0
while step < args.steps:
    for rows in batches:
        replies = [s for r in sampler.sample(rows, params) for s in r.sequences]
        chats = [
            {**row, "messages": [*row["messages"], {"role": "assistant", "content": reply.decoded}]}
            for row, reply in zip((row for row in rows for _ in range(group)), replies, strict=True)
        ]
        rewards = reward(chats)
        model.forward_backward(
            inputs=[reply.new_input_feature for reply in replies],
            old_logps=[reply.logprobs for reply in replies],
            advantages=advantage(rewards, num_generations=group).tolist(),
        )
        model.clip_grad_and_step(max_grad_norm=1.0)
        step += 1
        print(step, f"mean reward {sum(rewards) / len(rewards):.3f}")
        if step == args.steps:
            break
print("saved", model.save("adapter", output_dir=args.output))
