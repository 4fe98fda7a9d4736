"""Reinforcement learning with a critic: PPO on grade school mathematics.

    python cookbook/rl/ppo/ppo.py --model-id smollm2 --dataset-id gsm8k.jsonl

The policy is an adapter, and the base model without it the reference of the KL penalty. The critic
is a second model, all weights of which are trained.
"""

from itertools import chain, islice, repeat

import torch
from peft import LoraConfig

import twinkle
from twinkle import get_logger
from twinkle.advantage import GAEAdvantage
from twinkle.cli import CLI
from twinkle.data_format import SamplingParams
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.metric import PPOValueMetric
from twinkle.model import TransformersModel, TransformersValueModel
from twinkle.preprocessor import GSM8KProcessor
from twinkle.reward import GSM8KAccuracyReward, GSM8KFormatReward
from twinkle.sampler import vLLMSampler

logger = get_logger()
args = CLI.from_args()
MODEL = args.model.model_id or "smollm2"
DATA = args.dataset.dataset_id or "ms://modelscope/gsm8k"
KL = args.rl.kl_coef


def questions():
    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=MODEL, max_length=512)
    dataset.map(GSM8KProcessor(system="Think step by step. End with #### and the number."))
    dataset.encode(add_generation_prompt=True)
    return dataset


def replies_only(padded, features):
    """The entries of [B, L] that have a label, as [B, longest reply], and their mask."""
    rows = []
    for row, feature in zip(padded, features, strict=True):
        trained = torch.as_tensor(feature["labels"]) != -100
        rows.append(row[: len(trained)][trained])
    pad = torch.nn.utils.rnn.pad_sequence
    masks = pad([torch.ones(len(row), dtype=torch.bool) for row in rows], batch_first=True)
    return pad(rows, batch_first=True), masks


def as_lists(values, masks):
    return [row[mask].tolist() for row, mask in zip(values, masks, strict=True)]


def main():
    twinkle.initialize(mode="local")
    policy = TransformersModel(model_id=MODEL)
    lora = LoraConfig(**args.get_lora_args())
    policy.add_adapter_to_model(args.lora.adapter_name, lora)
    policy.set_optimizer("AdamW", lr=args.optimizer.learning_rate)
    policy.set_loss("PPOLoss", epsilon=args.loss.epsilon)
    critic = TransformersValueModel(model_id=MODEL)
    critic.set_optimizer("AdamW", lr=args.rl.critic_learning_rate)
    critic.set_loss("PPOValueLoss", epsilon=args.loss.value_clip)
    critic.add_metric(PPOValueMetric, epsilon=args.loss.value_clip)
    sampler = vLLMSampler(model=policy)
    sampler.set_template("Template", model_id=MODEL)
    estimate = GAEAdvantage(args.rl.gamma, args.rl.gae_lambda, args.rl.normalize_advantages)
    batches = DataLoader(dataset=questions, batch_size=args.training.batch_size)
    params = SamplingParams(
        max_tokens=args.sampling.max_tokens or 256,
        num_samples=args.sampling.num_samples,
        logprobs=1,
    )

    steps = args.training.max_steps
    for step, prompts in enumerate(islice(chain.from_iterable(repeat(batches)), steps), 1):
        replies = [r for response in sampler.sample(prompts, params) for r in response.sequences]
        chats = [reply.new_input_feature for reply in replies]
        right, formed = GSM8KAccuracyReward()(chats), GSM8KFormatReward()(chats)
        scores = [a + 0.2 * b for a, b in zip(right, formed, strict=True)]

        old = policy.forward_only(inputs=chats)["logps"]
        reference = policy.forward_only(inputs=chats, disable_lora=True)["logps"]
        values, masks = replies_only(critic.forward_only(inputs=chats)["values"], chats)
        old_logps, ref_logps = (as_lists(*replies_only(logps, chats)) for logps in (old, reference))
        rewards = estimate.build_token_rewards(
            scores,
            [len(row) for row in old_logps],
            old_logps=old_logps,
            ref_logps=ref_logps,
            kl_coef=KL,
        )
        padded = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rewards)), batch_first=True)
        advantages, returns = estimate(padded, values, masks=masks)

        policy.forward_backward(
            inputs=chats, old_logps=old_logps, advantages=as_lists(advantages, masks)
        )
        policy.clip_grad_and_step(max_grad_norm=args.optimizer.max_grad_norm)
        critic.forward_backward(
            inputs=chats, old_values=as_lists(values, masks), returns=as_lists(returns, masks)
        )
        critic.clip_grad_and_step(max_grad_norm=args.optimizer.max_grad_norm)
        logger.info(
            f"step {step}: right {sum(right):.0f} of {len(right)}, "
            f"policy {policy.calculate_metric(is_training=True)}, "
            f"critic {critic.calculate_metric(is_training=True)}"
        )
    policy.save("ppo-policy", output_dir=args.training.output_dir)
    critic.save("ppo-critic", output_dir=args.training.output_dir)


if __name__ == "__main__":
    main()
