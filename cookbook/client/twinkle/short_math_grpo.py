"""GRPO through Twinkle's own client: the server samples and trains, rewards are this script's own.

    python cookbook/client/twinkle/short_math_grpo.py

A reply is rewarded for a right answer, and for being short. TWINKLE_MODEL_ID, TWINKLE_SERVER_URL,
TWINKLE_SERVER_TOKEN, TWINKLE_STEPS: as self_cognition.py's. TWINKLE_DATASET_ID: rows of GSM8K's
form. TWINKLE_MAX_TOKENS: of a reply.
"""

import os
from itertools import chain, islice, repeat

from twinkle.advantage import GRPOAdvantage
from twinkle.data_format import LoraConfig
from twinkle.preprocessor import GSM8KProcessor
from twinkle.reward import GSM8KAccuracyReward
from twinkle_client import init_twinkle_client
from twinkle_client.dataloader import DataLoader
from twinkle_client.dataset import Dataset, DatasetMeta
from twinkle_client.model import MultiLoraTransformersModel
from twinkle_client.sampler import vLLMSampler

MODEL = os.environ.get("TWINKLE_MODEL_ID", "smollm2")
DATA = os.environ.get("TWINKLE_DATASET_ID", "ms://modelscope/gsm8k")
STEPS = int(os.environ.get("TWINKLE_STEPS", "100"))
MAX_TOKENS = int(os.environ.get("TWINKLE_MAX_TOKENS", "256"))
GENERATIONS, BATCH = 4, 2


def main():
    init_twinkle_client()
    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=MODEL, max_length=512)
    dataset.map(GSM8KProcessor(system="Think step by step. End with #### and the number."))
    dataset.encode(add_generation_prompt=True)
    batches = DataLoader(dataset=dataset, batch_size=BATCH)

    model = MultiLoraTransformersModel(model_id=MODEL)
    model.add_adapter_to_model("default", LoraConfig(r=16, target_modules="all-linear"))
    model.set_loss("GRPOLoss", epsilon=0.2)
    model.set_optimizer("AdamW", lr=2e-5)
    sampler = vLLMSampler(model_id=MODEL)
    sampler.set_template("Template")
    params = {"max_tokens": MAX_TOKENS, "num_samples": GENERATIONS, "logprobs": 1}

    for step, prompts in enumerate(islice(chain.from_iterable(repeat(batches)), STEPS), 1):
        weights = model.save("for-sampling", is_sampler=True)  # the one before goes
        responses = sampler.sample(prompts, params, adapter_uri=weights)
        replies = [reply for response in responses for reply in response.sequences]
        chats = [reply.new_input_feature for reply in replies]
        right = GSM8KAccuracyReward()(chats)
        rewards = [
            reward - len(reply.tokens) / MAX_TOKENS / 10
            for reward, reply in zip(right, replies, strict=True)
        ]
        advantages = GRPOAdvantage()(rewards, num_generations=GENERATIONS).tolist()
        old_logps = [[token[0][1] for token in reply.logprobs] for reply in replies]
        model.forward_backward(inputs=chats, old_logps=old_logps, advantages=advantages)
        model.clip_grad_and_step()
        mean = sum(rewards) / len(rewards)
        print(f"step {step}: right {sum(right):.0f} of {len(right)}, mean reward {mean:.3f}")
    print("saved", model.save("short-math", save_optimizer=True))


if __name__ == "__main__":
    main()
