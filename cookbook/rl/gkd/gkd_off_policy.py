"""Distillation on replies that are given: the student learns a teacher's likeliest tokens.

One process, both models in it:
    python cookbook/rl/gkd/gkd_off_policy.py --student-model-id smollm2 --teacher-model-id smollm2
On Ray, in two groups of ranks:
    python cookbook/rl/gkd/gkd_off_policy.py --mode ray --model-gpus 4 --sampler-gpus 4

--gkd-topk: likeliest tokens of each position, at most 128. Both models need one vocabulary.
"""

from itertools import islice

import torch
from peft import LoraConfig

import twinkle
from twinkle import DeviceGroup, DeviceMesh, get_logger
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
RANKS, SAMPLERS = args.infra.model_gpus or 1, args.infra.sampler_gpus or 1
TOPK = args.rl.gkd_topk


def answers():
    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=STUDENT, max_length=1024)
    dataset.map(GSM8KProcessor(add_assistant=True))
    return dataset


def places():
    """Where the student and its teacher are: keyword arguments of each."""
    if args.infra.mode != "ray":
        twinkle.initialize(mode="local")
        return {}, {}
    groups = [
        DeviceGroup("student", ranks=list(range(RANKS)), device_type="GPU"),
        DeviceGroup("teacher", ranks=list(range(RANKS, RANKS + SAMPLERS)), device_type="GPU"),
    ]
    twinkle.initialize(mode="ray", nproc_per_node=RANKS + SAMPLERS, groups=groups)
    return (
        {"remote_group": "student", "device_mesh": DeviceMesh.from_sizes(dp_size=RANKS)},
        {"remote_group": "teacher", "device_mesh": DeviceMesh.from_sizes(dp_size=SAMPLERS)},
    )


def teachers_tokens(responses):
    """GKDLoss's arguments, [B, L, K]: position t has the tokens that may follow it."""
    rows = [response.topk_prompt_logprobs[1:] for response in responses]
    longest = max(len(row) for row in rows) + 1
    ids = torch.zeros(len(rows), longest, TOPK, dtype=torch.long)
    logprobs = torch.zeros(len(rows), longest, TOPK)
    for i, row in enumerate(rows):
        for t, tokens in enumerate(row):
            ids[i, t] = torch.tensor([token for token, _ in tokens[:TOPK]])
            logprobs[i, t] = torch.tensor([logprob for _, logprob in tokens[:TOPK]])
    return {"teacher_topk_indices": ids, "teacher_topk_logprobs": logprobs}


def main():
    of_student, of_teacher = places()
    student = TransformersModel(model_id=STUDENT, **of_student)
    lora = LoraConfig(**args.get_lora_args())
    student.add_adapter_to_model(args.lora.adapter_name, lora)
    student.set_optimizer("AdamW", lr=args.optimizer.learning_rate)
    student.set_loss(GKDLoss(beta=args.rl.gkd_beta, temperature=args.rl.gkd_temperature))
    student.set_template("Template", model_id=STUDENT)
    teacher = vLLMSampler(model_id=TEACHER, **of_teacher)
    teacher.set_template("Template", model_id=TEACHER)
    dataloader = DataLoader(dataset=answers, batch_size=args.training.batch_size, **of_student)

    scoring = SamplingParams(max_tokens=0, prompt_logprobs=TOPK)  # samples nothing
    steps = args.training.max_steps
    for step, batch in enumerate(islice(dataloader, steps), 1):
        responses = teacher.sample(batch, scoring)
        scored = [r.new_input_feature for response in responses for r in response.sequences]
        student.forward_backward(inputs=scored, **teachers_tokens(responses))
        student.clip_grad_and_step(max_grad_norm=args.optimizer.max_grad_norm)
        if step % args.training.log_interval == 0 or step == steps:
            logger.info(f"step {step}: {student.calculate_metric(is_training=True)}")
    student.save("gkd-off-policy", output_dir=args.training.output_dir)


if __name__ == "__main__":
    main()
