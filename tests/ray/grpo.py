"""GRPO with a model in one group and its sampler in another, or, without ranks, in this process:
MODEL STEPS MODEL_RANKS SAMPLER_RANKS. Prints what was sampled, and norms, as JSON."""

import json
import sys

import twinkle
from twinkle import DeviceGroup, DeviceMesh, LoraConfig
from twinkle.advantage import GRPOAdvantage
from twinkle.checkpoint_engine import CheckpointEngineManager
from twinkle.data_format import SamplingParams
from twinkle.model import TransformersModel
from twinkle.processor import InputProcessor
from twinkle.sampler import vLLMSampler

model_dir, steps, model_ranks, sampler_ranks = sys.argv[1], *map(int, sys.argv[2:5])
NUM_GENERATIONS = 4
of_model, of_sampler = {}, {}
if model_ranks > 0:
    ranks = list(range(model_ranks + sampler_ranks))
    groups = [
        DeviceGroup(name="model", ranks=ranks[:model_ranks], device_type="GPU"),
        DeviceGroup(name="sampler", ranks=ranks[model_ranks:], device_type="GPU"),
    ]
    twinkle.initialize(mode="ray", nproc_per_node=len(ranks), groups=groups, lazy_collect=False)
    mesh = DeviceMesh.from_sizes(world_size=model_ranks, dp_size=model_ranks)
    of_model = {"device_mesh": mesh, "remote_group": "model"}
    mesh = DeviceMesh.from_sizes(world_size=sampler_ranks, dp_size=sampler_ranks)
    of_sampler = {"device_mesh": mesh, "remote_group": "sampler"}

model = TransformersModel(model_id=model_dir, **of_model)
config = LoraConfig(target_modules="all-linear", r=8, lora_alpha=24, lora_dropout=0.05)
model.add_adapter_to_model("default", config, gradient_accumulation_steps=1)
model.set_optimizer("AdamW", lr=1e-2)
model.set_lr_scheduler("CosineAnnealingLR", T_max=20, eta_min=0)
model.set_loss("GRPOLoss", epsilon=0.2)
model.set_processor(InputProcessor)
if model_ranks > 0:
    arguments = {"max_model_len": 256, "max_lora_rank": 32, "enable_lora": False}
    sampler = vLLMSampler(model_id=model_dir, engine_args=arguments, **of_sampler)
else:
    sampler = vLLMSampler(model=model)
manager = CheckpointEngineManager(model=model, sampler=sampler)
params = SamplingParams(max_tokens=12, num_samples=1, logprobs=1)

told = []
for step in range(steps):
    prompts = [{"input_ids": [5 + step, 6, 7, 8 + i]} for i in range(2)]
    manager.sync_weights(merge_and_sync=True)
    sampler.reset_prefix_cache()
    responses = sampler.sample(prompts * NUM_GENERATIONS, params, return_encoded=True)
    assert isinstance(responses, list)  # lazy_collect is False
    sequences = [sequence for response in responses for sequence in response.sequences]
    tokens = [list(sequence.tokens) for sequence in sequences]
    old_logps = [[logprob[0][1] for logprob in sequence.logprobs] for sequence in sequences]
    rewards = [sum(each) % 7 / 7 for each in tokens]
    advantages = GRPOAdvantage()(rewards, num_generations=NUM_GENERATIONS, scale="group").tolist()
    model.forward_backward(
        inputs=[sequence.new_input_feature for sequence in sequences],
        old_logps=old_logps,
        advantages=advantages,
        micro_batch_size=2,
    )
    model.clip_grad_and_step()
    metric = model.calculate_metric(is_training=True)
    told.append([tokens, old_logps, metric.get("grad_norm")])
print(json.dumps(told))
