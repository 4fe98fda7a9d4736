"""The Ray scripts of the source documents, as they are but for sizes: model and data ids lead to
local files, and TWINKLE_DEVICE=cpu puts groups that ask for GPUs on CPUs."""

import hashlib
import json
import re
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples/ray_grpo.py"

# The README's section "Train with Ray".
SFT = """
from peft import LoraConfig
import twinkle
from twinkle import DeviceMesh, DeviceGroup
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.preprocessor import SelfCognitionProcessor

device_group = [DeviceGroup(name='default',ranks=2,device_type='cuda')]
device_mesh = DeviceMesh.from_sizes(fsdp_size=1, dp_size=2)
# local for torchrun
twinkle.initialize(mode='ray', groups=device_group, global_device_mesh=device_mesh)


def train():
    # to load model from Hugging Face, use 'hf://...'
    base_model = 'ms://Qwen/Qwen2.5-7B-Instruct'
    # 1000 samples
    dataset = Dataset(dataset_meta=DatasetMeta('ms://swift/self-cognition', data_slice=range(1000)))
    # Set template to prepare encoding
    dataset.set_template('Template', model_id=base_model)
    # Preprocess the dataset to standard format
    dataset.map(SelfCognitionProcessor('twinkle LLM', 'ModelScope Community'))
    # Encode dataset
    dataset.encode()
    # Global batch size = 8, for GPUs, so 1 sample per GPU
    dataloader = DataLoader(dataset=dataset, batch_size=8, min_batch_size=8)
    # Use a TransformersModel
    model = TransformersModel(model_id=base_model, remote_group='default')

    lora_config = LoraConfig(
        r=8,
        lora_alpha=32,
        target_modules='all-linear'
    )

    # Add a lora to model, with name `default`
    # Comment this to use full-parameter training
    model.add_adapter_to_model('default', lora_config, gradient_accumulation_steps=2)
    # Add Optimizer for lora `default`
    model.set_optimizer(optimizer_cls='AdamW', lr=1e-4)
    # Add LRScheduler for lora `default`
    model.set_lr_scheduler(scheduler_cls='CosineWarmupScheduler', num_warmup_steps=5,
                           num_training_steps=len(dataloader))
    for step, batch in enumerate(dataloader):
        # Do forward and backward
        model.forward_backward(inputs=batch)
        # Step
        model.clip_grad_and_step()
        if step % 20 == 0:
            # Print metric
            metric = model.calculate_metric(is_training=True)
            print(f'Current is step {step} of {len(dataloader)}, metric: {metric}')
    model.save(f'last-checkpoint')


if __name__ == '__main__':
    train()
"""

# "Seamlessly Switch Runtime Modes", section "Ray Mode", with what its dots stand for.
MODES = """
import twinkle
from twinkle import DeviceMesh, DeviceGroup

# Define resource groups
device_groups = [
    DeviceGroup(name='model', ranks=2, device_type='cuda'),
    DeviceGroup(name='sampler', ranks=2, device_type='cuda'),
]

# Define parallel topology
model_mesh = DeviceMesh.from_sizes(world_size=2, dp_size=2)
sampler_mesh = DeviceMesh.from_sizes(world_size=2, dp_size=2)

# Initialize Ray mode
twinkle.initialize(
    mode='ray',
    nproc_per_node=8,
    groups=device_groups,
    lazy_collect=False
)

def train():
    model = TransformersModel(
        model_id='ms://Qwen/Qwen3.5-4B',
        remote_group='model',
        device_mesh=model_mesh
    )
    
    sampler = vLLMSampler(
        model_id='ms://Qwen/Qwen3.5-4B',
        device_mesh=sampler_mesh,
        remote_group='sampler'
    )
    ...

if __name__ == '__main__':
    train()
"""  # noqa: W293

# "Training Best Practices", section "Reinforcement Learning with Ray".
GRPO = """
from typing import List, Dict, Any
from peft import LoraConfig
import twinkle
from twinkle import DeviceMesh, DeviceGroup, get_device_placement, get_logger
from twinkle.advantage import GRPOAdvantage
from twinkle.checkpoint_engine import CheckpointEngineManager
from twinkle.data_format import SamplingParams
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.processor import InputProcessor
from twinkle.reward import GSM8KAccuracyReward, GSM8KFormatReward
from twinkle.sampler import vLLMSampler
from twinkle.template import Template
from twinkle.metric import CompletionRewardMetric
from twinkle.preprocessor.llm import GSM8KProcessor

logger = get_logger()

MODEL_ID = 'ms://Qwen/Qwen3.5-4B'
MODEL_GPUS = 2      # 4 GPUs for model training
SAMPLER_GPUS = 2    # 4 GPUs for vLLM sampling
NUM_GPUS = MODEL_GPUS + SAMPLER_GPUS

NUM_GENERATIONS = 4     # 8 samples per group
MAX_NEW_TOKENS = 16
LEARNING_RATE = 1e-5
MAX_STEPS = 3
BATCH_SIZE = 2
MINI_BATCH_SIZE = 4
MICRO_BATCH_SIZE = 2
ADAPTER_NAME = 'default'

def create_gsm8k_dataset():
    dataset = Dataset(DatasetMeta('ms://modelscope/gsm8k', subset_name='main', split='train'))
    dataset.set_template('Qwen3_5Template', model_id=MODEL_ID, max_length=2048)
    dataset.map(GSM8KProcessor())
    dataset.encode(add_generation_prompt=True)
    return dataset

def compute_rewards(trajectories: List[Dict[str, Any]]):
    accuracy_reward_fn = GSM8KAccuracyReward()
    format_reward_fn = GSM8KFormatReward()
    accuracy_rewards = accuracy_reward_fn(trajectories)
    format_rewards = format_reward_fn(trajectories)
    total_rewards = [a + f for a, f in zip(accuracy_rewards, format_rewards)]
    return total_rewards, format_rewards, accuracy_rewards

def main():
    # Assign model and sampler to separate GPU groups
    device_groups = [
        DeviceGroup(name='model', ranks=list(range(MODEL_GPUS)), device_type='GPU'),
        DeviceGroup(name='sampler', ranks=list(range(MODEL_GPUS, NUM_GPUS)), device_type='GPU'),
    ]
    model_mesh = DeviceMesh.from_sizes(world_size=MODEL_GPUS, dp_size=MODEL_GPUS)
    sampler_mesh = DeviceMesh.from_sizes(world_size=SAMPLER_GPUS, dp_size=SAMPLER_GPUS)

    # Initialize in Ray mode
    twinkle.initialize(mode='ray', nproc_per_node=NUM_GPUS, groups=device_groups, lazy_collect=False)

    lora_config = LoraConfig(target_modules='all-linear', r=32, lora_alpha=64, lora_dropout=0.05)

    # Model deployed in the 'model' group
    model = TransformersModel(model_id=MODEL_ID, device_mesh=model_mesh, remote_group='model')
    model.add_adapter_to_model(ADAPTER_NAME, lora_config, gradient_accumulation_steps=1)
    model.set_optimizer('AdamW', lr=LEARNING_RATE)
    model.set_lr_scheduler('CosineAnnealingLR', T_max=MAX_STEPS, eta_min=0)
    model.set_loss('GRPOLoss', epsilon=0.2)
    model.set_processor(InputProcessor)
    model.set_template('Qwen3_5Template', model_id=MODEL_ID)

    # Sampler deployed in the 'sampler' group
    sampler = vLLMSampler(
        model_id=MODEL_ID,
        engine_args={
            'gpu_memory_utilization': 0.8,
            'max_model_len': 256,
            'max_lora_rank': 32,
            'enable_lora': False,
        },
        device_mesh=sampler_mesh,
        remote_group='sampler',
    )
    sampler.set_template('Qwen3_5Template', model_id=MODEL_ID)

    ckpt_manager = CheckpointEngineManager(model=model, sampler=sampler)

    dataloader = DataLoader(
        dataset=create_gsm8k_dataset,
        batch_size=BATCH_SIZE,
        min_batch_size=BATCH_SIZE,
        device_mesh=model_mesh,
        remote_group='model',
    )

    advantage_fn = GRPOAdvantage()
    metrics = CompletionRewardMetric()
    sampling_params = SamplingParams(max_tokens=MAX_NEW_TOKENS, num_samples=1, logprobs=1)

    optim_step = 0
    logger.info(get_device_placement())

    for batch in dataloader:
        if optim_step >= MAX_STEPS:
            break
        metrics.reset()
        global_prompts = batch if isinstance(batch, list) else [batch]

        # Sync weights to sampler
        ckpt_manager.sync_weights(merge_and_sync=True)
        sampler.reset_prefix_cache()

        # Group sampling: sample NUM_GENERATIONS completions per prompt
        sample_responses = sampler.sample(
            global_prompts * NUM_GENERATIONS,
            sampling_params,
        )

        all_input_data = []
        all_old_logps = []
        all_completion_lengths = []

        for sample_response in sample_responses:
            for sequence in sample_response.sequences:
                all_input_data.append(sequence.new_input_feature)
                all_old_logps.append([logprob[0][1] for logprob in sequence.logprobs])
                all_completion_lengths.append(len(sequence.tokens))

        # Compute rewards
        total_rewards, format_rewards, accuracy_rewards = compute_rewards(all_input_data)
        metrics.accumulate(
            completion_lengths=all_completion_lengths,
            rewards={
                'total': total_rewards,
                'format': format_rewards,
                'accuracy': accuracy_rewards,
            },
        )

        # GRPO advantage estimation: group-level normalization
        advantages = advantage_fn(total_rewards, num_generations=NUM_GENERATIONS, scale='group').tolist()

        # Mini-batch training
        total_completions = len(all_input_data)
        for mb_start in range(0, total_completions, MINI_BATCH_SIZE):
            mb_end = min(mb_start + MINI_BATCH_SIZE, total_completions)
            mb_inputs = all_input_data[mb_start:mb_end]
            mb_old_logps = all_old_logps[mb_start:mb_end]
            mb_advantages = advantages[mb_start:mb_end]

            model.forward_backward(
                inputs=mb_inputs,
                old_logps=mb_old_logps,
                advantages=mb_advantages,
                micro_batch_size=MICRO_BATCH_SIZE,
            )
            model.clip_grad_and_step()
            optim_step += 1

            if optim_step >= MAX_STEPS:
                break
            log_dict = metrics.calculate()
            log_dict.update(model.calculate_metric(is_training=True))
            metrics.reset()
            logger.info(f'[Step {optim_step}/{MAX_STEPS}] {log_dict}')

    logger.info(f'Training completed. optim_steps={optim_step}')
    model.save('grpo-gsm8k-checkpoint')

if __name__ == '__main__':
    main()
"""  # noqa: E501

IDS = ("Qwen/Qwen3.5-4B", "Qwen/Qwen2.5-7B-Instruct")


@pytest.fixture
def run(tiny_llama_dir, tmp_path):
    """run(cluster, text, rows): a script in a folder of its own; its completed process."""

    def start(cluster, text, rows=(), name="script"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(text)
        data = folder / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return cluster.run(
            ["train.py"],
            folder=folder,
            TWINKLE_MODEL_ID_ALIASES=",".join(f"{i}={tiny_llama_dir}" for i in IDS),
            TWINKLE_DATASET_ID_ALIASES=f"swift/self-cognition={data},modelscope/gsm8k={data}",
        )

    return start


def self_cognition(count):
    return [
        {"query": f"Who are you, {i}?", "response": "I am {{NAME}} of {{AUTHOR}}.", "tag": "en"}
        for i in range(count)
    ]


def adapter(folder):
    file = folder / "output/last-checkpoint/adapter_model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_readmes_script_gives_the_losses_and_the_adapter_of_one_process(run, cluster, tmp_path):
    rows = self_cognition(40)
    together = run(cluster, SFT, rows, "together")
    alone = re.sub(r"dp_size=2", "dp_size=1", SFT).replace("mode='ray'", "mode='local'")
    alone = run(cluster, alone, rows, "alone")
    told = [
        re.findall(r"Current is step.*'loss': '?([0-9.]+)", r.stdout) for r in (together, alone)
    ]
    assert told[0] == told[1] and told[0]
    assert adapter(tmp_path / "together") == adapter(tmp_path / "alone")


def test_the_grpo_script_samples_in_one_group_and_trains_in_the_other(run, cluster, tmp_path):
    rows = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(6)]
    done = run(cluster, GRPO, rows)
    assert re.findall(r"\[Step (\d)/3\]", done.stderr) == ["1", "2"], done.stderr
    assert "Training completed. optim_steps=3" in done.stderr
    assert "group sampler: 2 x cpu by TWINKLE_DEVICE, not GPU, ranks [2, 3]" in done.stderr
    saved = tmp_path / "script/output/grpo-gsm8k-checkpoint/adapter_model.safetensors"
    assert saved.is_file()


COMMANDS = """
CUDA_VISIBLE_DEVICES=0,1 ray start --head --port=6379 --num-gpus=2
CUDA_VISIBLE_DEVICES=2,3 ray start --address=127.0.0.1:6379 --num-gpus=2
CUDA_VISIBLE_DEVICES="" ray start --address=127.0.0.1:6379 --num-gpus=0
"""

# What the document leaves out: the imports of two classes, and what its dots stand for.
IMPORTS = """
from twinkle.model import TransformersModel
from twinkle.sampler import vLLMSampler
"""
WORK = """
    responses = sampler.sample([{'input_ids': [5, 6, 7]}] * 3, {'max_tokens': 4})
    print('samples', len(responses))
"""

CARDS = """
import os
del os.environ['TWINKLE_DEVICE']
import twinkle
from twinkle import DeviceGroup
from remote.things import Thing

groups = [DeviceGroup(name=name, ranks=2, device_type='cuda') for name in ('model', 'sampler')]
twinkle.initialize(mode='ray', groups=groups)
for name in ('model', 'sampler'):
    print('cards', sorted(fact['card'] for fact in Thing(remote_group=name).facts()))
"""


def test_the_documents_commands_make_three_nodes_on_which_its_script_runs(run, empty_cluster):
    for number, line in enumerate(COMMANDS.strip().splitlines()):
        visible, command = line.split(" ray start ")
        started = command.replace("6379", str(empty_cluster.port)).split()
        # What nodes that share a machine need: less memory, and as many CPUs as they are to have.
        started += ["--num-cpus=2", "--object-store-memory=100000000"]
        if "--head" in started:
            started += [f"--temp-dir={empty_cluster.folder / 't'}", "--include-dashboard=false"]
        cards = visible.partition("=")[2].strip('"')
        empty_cluster.start(*started, CUDA_VISIBLE_DEVICES=cards)
        empty_cluster.wait_for(number + 1)
    done = run(empty_cluster, IMPORTS + MODES.replace("    ...\n", WORK))
    assert "samples 3" in done.stdout
    # Groups of GPUs get the cards of the nodes; only an engine would look whether they are there.
    done = run(empty_cluster, CARDS, name="cards")
    assert sorted(done.stdout.splitlines()[-2:]) == ["cards ['0', '1']", "cards ['2', '3']"]


def test_the_demo_prints_the_same_with_one_worker_and_with_two(cluster, tiny_llama_dir):
    printed = []
    for workers in (1, 2):
        done = cluster.run(
            [DEMO, "--model", tiny_llama_dir, "--steps", 2, "--workers", workers, "--max-tokens", 8]
        )
        printed.append(re.findall(r"^step .*norm=[0-9.]+", done.stdout, re.MULTILINE))
    assert printed[0] == printed[1] and len(printed[0]) == 2


OWN = """
import twinkle
from twinkle import DeviceGroup, remote_class, remote_function


class Refused(Exception):
    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


class Row:
    def __init__(self, text):
        self.text = text


@remote_class(execute="all")
class Scorer:
    def __init__(self, least=0):
        self.least = least

    @remote_function(dispatch="slice_dp", collect="flatten")
    def score(self, rows):
        if any(len(row.text) < self.least for row in rows):
            raise Refused("a row", "short")
        return [Row(row.text * 2) for row in rows]


@remote_class(execute="all")
class Lengths:  # without a constructor
    @remote_function(dispatch="slice_dp", collect="flatten")
    def of(self, rows):
        return [len(row.text) for row in rows]


@remote_class(execute="all")
class Child(Scorer):
    def __init__(self):
        super().__init__(least=3)


twinkle.initialize(mode="ray", groups=[DeviceGroup("two", ranks=2, device_type="cpu")])
rows = [Row("a"), Row("bb"), Row("ccc")]
scored = Scorer(remote_group="two").score(rows)
print([row.text for row in scored], isinstance(scored[0], Row))
print(Lengths(remote_group="two").of(rows)())
try:
    print(Child(remote_group="two").score(rows)())
except Exception as error:
    print(type(error).__name__, error)
"""


def test_classes_of_the_script_itself_travel_to_the_workers_and_back(run, cluster):
    lines = run(cluster, OWN).stdout.splitlines()
    assert lines[-3:-1] == ["['aa', 'bbbb', 'cccccc'] True", "[1, 2, 3]"]
    assert re.match(r"InternalError infra: Refused: a row: short \(rank 0 of group two", lines[-1])
