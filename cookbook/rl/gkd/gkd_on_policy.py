"""Distillation on the student's own replies, which a teacher scores.

    python cookbook/rl/gkd/gkd_on_policy.py --student-model-id smollm2 --teacher-model-id smollm2 \
        --dataset-id gsm8k.jsonl

All models are in this process; the student samples with the weights that are trained. For groups of
ranks on Ray, gkd_off_policy.py shows the teacher's and ../grpo/grpo.py the student's sampler.
"""

from itertools import islice

import torch
from peft import LoraConfig

import twinkle
from twinkle import get_logger
from twinkle.cli import CLI
from twinkle.data_format import SamplingParams
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.loss import GKDLoss
from twinkle.model import TransformersModel
from twinkle.preprocessor import GSM8KProcessor
from twinkle.sampler import vLLMSampler

logger = get_logger()
args = CLI.from_args()
STUDENT, TEACHER = args.rl.student_model_id or "smollm2", args.rl.teacher_model_id or "smollm2"
DATA = args.dataset.dataset_id or "ms://modelscope/gsm8k"
TOPK = args.rl.gkd_topk


def questions():
    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=STUDENT, max_length=512)
    dataset.map(GSM8KProcessor())
    return dataset


def teachers_tokens(responses, longest):
    """GKDLoss's arguments, [B, L, K]: position t has the tokens that may follow it."""
    ids = torch.zeros(len(responses), longest, TOPK, dtype=torch.long)
    logprobs = torch.zeros(len(responses), longest, TOPK)
    for i, response in enumerate(responses):
        for t, tokens in enumerate(response.topk_prompt_logprobs[1:]):
            ids[i, t] = torch.tensor([token for token, _ in tokens[:TOPK]])
            logprobs[i, t] = torch.tensor([logprob for _, logprob in tokens[:TOPK]])
    return {"teacher_topk_indices": ids, "teacher_topk_logprobs": logprobs}


def main():
    twinkle.initialize(mode="local")
    student = TransformersModel(model_id=STUDENT)
    lora = LoraConfig(**args.get_lora_args())
    student.add_adapter_to_model(args.lora.adapter_name, lora)
    student.set_optimizer("AdamW", lr=args.optimizer.learning_rate)
    student.set_loss(GKDLoss(beta=args.rl.gkd_beta, temperature=args.rl.gkd_temperature))
    student.set_template("Template", model_id=STUDENT)
    own, teacher = vLLMSampler(model=student), vLLMSampler(model_id=TEACHER)
    own.set_template("Template", model_id=STUDENT)
    teacher.set_template("Template", model_id=TEACHER)
    dataloader = DataLoader(dataset=questions, batch_size=args.training.batch_size)

    of_reply = SamplingParams(
        max_tokens=args.sampling.max_tokens or 256, num_samples=args.sampling.num_samples
    )
    scoring = SamplingParams(max_tokens=0, prompt_logprobs=TOPK)
    steps = args.training.max_steps
    for step, prompts in enumerate(islice(dataloader, steps), 1):
        replies = [r for response in own.sample(prompts, of_reply) for r in response.sequences]
        inputs = [reply.new_input_feature for reply in replies]
        responses = teacher.sample(inputs, scoring)
        longest = max(len(feature["input_ids"]) for feature in inputs)
        student.forward_backward(inputs=inputs, **teachers_tokens(responses, longest))
        student.clip_grad_and_step(max_grad_norm=args.optimizer.max_grad_norm)
        if step % args.training.log_interval == 0 or step == steps:
            logger.info(f"step {step}: {student.calculate_metric(is_training=True)}")
    student.save("gkd-on-policy", output_dir=args.training.output_dir)


if __name__ == "__main__":
    main()
