"""Reinforcement learning with verifiable rewards: GRPO on grade school mathematics.

One process, in which the sampler reads the weights that are trained:
    python cookbook/rl/grpo/grpo.py --model-id smollm2 --dataset-id gsm8k.jsonl
On Ray, with a group of ranks that trains and one that samples:
    python cookbook/rl/grpo/grpo.py --mode ray --model-gpus 4 --sampler-gpus 4
"""

from itertools import chain, islice, repeat

from peft import LoraConfig

import twinkle
from twinkle import DeviceGroup, DeviceMesh, get_device_placement, get_logger
from twinkle.advantage import GRPOAdvantage
from twinkle.checkpoint_engine import CheckpointEngineManager
from twinkle.cli import CLI
from twinkle.data_format import SamplingParams
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.metric import CompletionRewardMetric
from twinkle.model import TransformersModel
from twinkle.preprocessor import GSM8KProcessor
from twinkle.reward import GSM8KAccuracyReward, GSM8KFormatReward
from twinkle.sampler import vLLMSampler

logger = get_logger()
args = CLI.from_args()
MODEL = args.model.model_id or "smollm2"
DATA = args.dataset.dataset_id or "ms://modelscope/gsm8k"
ON_RAY = args.infra.mode == "ray"
RANKS, SAMPLERS = args.infra.model_gpus or 1, args.infra.sampler_gpus or 1
ADAPTER, GENERATIONS = args.lora.adapter_name, args.rl.num_generations


def questions():
    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=MODEL, max_length=512)
    dataset.map(GSM8KProcessor(system="Think step by step. End with #### and the number."))
    dataset.encode(add_generation_prompt=True)
    return dataset


def places():
    """Where the model and the sampler are: keyword arguments of each."""
    if not ON_RAY:
        twinkle.initialize(mode="local")
        return {}, {}
    groups = [
        DeviceGroup("model", ranks=list(range(RANKS)), device_type="GPU"),
        DeviceGroup("sampler", ranks=list(range(RANKS, RANKS + SAMPLERS)), device_type="GPU"),
    ]
    twinkle.initialize(mode="ray", nproc_per_node=RANKS + SAMPLERS, groups=groups)
    return (
        {"remote_group": "model", "device_mesh": DeviceMesh.from_sizes(dp_size=RANKS)},
        {"remote_group": "sampler", "device_mesh": DeviceMesh.from_sizes(dp_size=SAMPLERS)},
    )


def main():
    of_model, of_sampler = places()
    model = TransformersModel(model_id=MODEL, **of_model)
    lora = LoraConfig(**args.get_lora_args())
    model.add_adapter_to_model(ADAPTER, lora)
    model.set_optimizer("AdamW", lr=args.optimizer.learning_rate)
    model.set_lr_scheduler("CosineAnnealingLR", T_max=args.training.max_steps, eta_min=0)
    model.set_loss("GRPOLoss", epsilon=args.loss.epsilon)
    model.set_template("Template", model_id=MODEL)
    if ON_RAY:
        sampler = vLLMSampler(model_id=MODEL, engine_args={"enable_lora": True}, **of_sampler)
        weights = CheckpointEngineManager(model=model, sampler=sampler)
    else:
        sampler, weights = vLLMSampler(model=model), None
    sampler.set_template("Template", model_id=MODEL)
    batches = DataLoader(dataset=questions, batch_size=args.training.batch_size, **of_model)
    params = SamplingParams(
        max_tokens=args.sampling.max_tokens or 256, num_samples=GENERATIONS, logprobs=1
    )
    metric = CompletionRewardMetric()
    logger.info(get_device_placement())

    steps = args.training.max_steps
    for step, prompts in enumerate(islice(chain.from_iterable(repeat(batches)), steps), 1):
        if weights is not None:
            weights.sync_weights(merge_and_sync=False)
        replies = [r for response in sampler.sample(prompts, params) for r in response.sequences]
        chats = [reply.new_input_feature for reply in replies]
        right, formed = GSM8KAccuracyReward()(chats), GSM8KFormatReward()(chats)
        rewards = [a + b for a, b in zip(right, formed, strict=True)]
        advantages = GRPOAdvantage()(rewards, num_generations=GENERATIONS).tolist()
        size = args.training.mini_batch_size or len(chats)
        for begin in range(0, len(chats), size):
            part = slice(begin, begin + size)
            old_logps = [[token[0][1] for token in reply.logprobs] for reply in replies[part]]
            model.forward_backward(
                inputs=chats[part], old_logps=old_logps, advantages=advantages[part]
            )
            model.clip_grad_and_step(max_grad_norm=args.optimizer.max_grad_norm)
        metric.reset()
        metric.accumulate(
            completion_lengths=[len(reply.tokens) for reply in replies],
            rewards={"total": rewards, "accuracy": right, "format": formed},
        )
        logger.info(f"step {step}: {metric.calculate() | model.calculate_metric(is_training=True)}")
        if step % args.training.save_steps == 0:
            model.save(f"checkpoint-{step}", output_dir=args.training.output_dir)
    model.save("grpo", output_dir=args.training.output_dir)


if __name__ == "__main__":
    main()
