"""GRPO through the `tinker` SDK: the server samples and trains, rewards are this script's own.

    python cookbook/client/tinker/short_math_grpo.py

A reply is rewarded for a right answer, and for being short. TWINKLE_MODEL_ID, TWINKLE_SERVER_URL,
TWINKLE_SERVER_TOKEN, TWINKLE_STEPS: as self_cognition.py's. TWINKLE_DATASET_ID: rows of GSM8K's
form. TWINKLE_MAX_TOKENS: of a reply.
"""

import os
from itertools import chain, islice, repeat

from twinkle import init_tinker_client
from twinkle.advantage import GRPOAdvantage
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.preprocessor import GSM8KProcessor
from twinkle.reward import GSM8KAccuracyReward
from twinkle.template import Template

init_tinker_client()
from tinker import ServiceClient, types  # noqa: E402

MODEL = os.environ.get("TWINKLE_MODEL_ID", "smollm2")
DATA = os.environ.get("TWINKLE_DATASET_ID", "ms://modelscope/gsm8k")
STEPS = int(os.environ.get("TWINKLE_STEPS", "100"))
MAX_TOKENS = int(os.environ.get("TWINKLE_MAX_TOKENS", "256"))
GENERATIONS, BATCH = 4, 2


def datum(prompt, sequence, advantage):
    """A Datum whose prompt has no weight, and each token of the reply the same advantage."""
    reply, before = list(sequence.tokens), len(prompt) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(prompt + reply[:-1]),
        loss_fn_inputs={
            "target_tokens": [0] * before + reply,
            "logprobs": [0.0] * before + list(sequence.logprobs),
            "advantages": [0.0] * before + [advantage] * len(reply),
        },
    )


def main():
    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=MODEL, max_length=512)
    dataset.map(GSM8KProcessor(system="Think step by step. End with #### and the number."))
    dataset.encode(add_generation_prompt=True)
    batches = DataLoader(dataset=dataset, batch_size=BATCH)
    template = Template(model_id=MODEL)
    service = ServiceClient(
        base_url=os.environ.get("TWINKLE_SERVER_URL", "http://localhost:8000"),
        api_key=os.environ.get("TWINKLE_SERVER_TOKEN", "EMPTY_TOKEN"),
    )
    trainer = service.create_lora_training_client(base_model=MODEL, rank=16)
    params = types.SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0)

    for step, rows in enumerate(islice(chain.from_iterable(repeat(batches)), STEPS), 1):
        sampler = trainer.save_weights_and_get_sampling_client()
        prompts = [list(map(int, row["input_ids"])) for row in rows]
        futures = [
            sampler.sample(types.ModelInput.from_ints(prompt), GENERATIONS, params)
            for prompt in prompts
        ]
        replies = [
            (prompt, row, sequence)
            for prompt, row, future in zip(prompts, rows, futures, strict=True)
            for sequence in future.result().sequences
        ]
        chats = [
            {
                "messages": [
                    *row["messages"],
                    {"role": "assistant", "content": template.decode(sequence.tokens)},
                ],
                "user_data": row["user_data"],
            }
            for _, row, sequence in replies
        ]
        right = GSM8KAccuracyReward()(chats)
        rewards = [
            reward - len(sequence.tokens) / MAX_TOKENS / 10
            for reward, (_, _, sequence) in zip(right, replies, strict=True)
        ]
        advantages = GRPOAdvantage()(rewards, num_generations=GENERATIONS).tolist()
        data = [
            datum(prompt, sequence, advantage)
            for (prompt, _, sequence), advantage in zip(replies, advantages, strict=True)
        ]
        passed = trainer.forward_backward(data, "importance_sampling")
        trainer.optim_step(types.AdamParams(learning_rate=2e-5)).result()
        passed.result()
        mean = sum(rewards) / len(rewards)
        print(f"step {step}: right {sum(right):.0f} of {len(right)}, mean reward {mean:.3f}")
    print("saved", trainer.save_state("short-math", overwrite=True).result().path)


if __name__ == "__main__":
    main()
