"""The script for sampling on one device, as cookbook/sample/sample.py calls it: a group of one
rank, a sampler with an adapter, three long prompts."""

import json
import re
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("engine_built")

SAMPLE = """
import os
from typing import Any, Dict, List

import twinkle
from twinkle import DeviceGroup, DeviceMesh, get_device_placement, get_logger
from twinkle.data_format import SamplingParams
from twinkle.sampler import vLLMSampler

logger = get_logger()

HEAD

SYSTEM = 'You compress texts. Keep names, numbers and dates.'
USER = 'Compress to at most {budget} characters.\\n\\n## Query\\n{query}\\n\\n## Passage\\n{text}'
CASES = [
    ('code', 'What does it do?', 'def add(a, b):\\n    return a + b\\n' * 40),
    ('news', '会议讲了什么？', '二〇二六年五月十日，会议在合肥闭幕。' * 40),
    ('html', 'How is it built?', '<div class="price">¥9,999.00 &nbsp;</div>\\n' * 40),
]


def build_prompts() -> List[Dict[str, Any]]:
    prompts = []
    for tag, query, passage in CASES:
        budget = max(1, len(passage) // 2)
        user_msg = USER.format(query=query, budget=budget, text=passage)
        prompts.append({
            'tag': tag,
            'src_len': len(passage),
            'budget': budget,
            'messages': [
                {'role': 'system', 'content': SYSTEM},
                {'role': 'user', 'content': user_msg},
            ],
        })
    return prompts


def main():
    device_groups = [
        DeviceGroup(name='sampler',
                    ranks=list(range(SAMPLER_GPUS)),
                    device_type='GPU',
                    gpus_per_worker=SAMPLER_GPUS),
    ]
    sampler_mesh = DeviceMesh.from_sizes(world_size=SAMPLER_GPUS, tp_size=SAMPLER_GPUS)
    twinkle.initialize(mode='ray', nproc_per_node=SAMPLER_GPUS, groups=device_groups)

    sampler = vLLMSampler(
        model_id=MODEL_ID,
        engine_args={
            'gpu_memory_utilization': 0.7,
            'max_model_len': 16384,
            'enable_lora': True,
            'max_loras': 1,
            'max_lora_rank': 32,
            'enable_tower_connector_lora': True,
        },
        device_mesh=sampler_mesh,
        remote_group='sampler',
    )
    sampler.set_template('Qwen3_5Template', model_id=MODEL_ID, enable_thinking=False)
    logger.info(get_device_placement())

    sampling_params = SamplingParams(
        max_tokens=2048,
        temperature=0.4,
        top_p=0.9,
        num_samples=1,
    )

    prompts = build_prompts()
    logger.info(f'{len(prompts)} prompts, model {MODEL_ID}, LoRA {LORA_PATH} ...')

    responses = sampler.sample(
        [{'messages': p['messages']} for p in prompts],
        sampling_params,
        adapter_path=LORA_PATH,
    )

    for i, response in enumerate(responses):
        meta = prompts[i]
        for seq in response.sequences:
            text = seq.decoded
            logger.info(f'case {i + 1}: {meta["tag"]} ({meta["src_len"]} of {meta["budget"]}), '
                        f'{len(seq.tokens)} tokens, {seq.stop_reason}\\n{text}')


if __name__ == '__main__':
    main()
"""


# How the script's settings came in two of its versions.
BY_ENVIRONMENT = """
MODEL_ID = os.environ.get('MODEL_ID', 'Qwen/Qwen3.5-4B')
LORA_PATH = os.environ.get('LORA_PATH', 'ms://twinkle-kit/Qwen3.5-4B-Condenser')
SAMPLER_GPUS = int(os.environ.get('SAMPLER_GPUS', 1))
"""
BY_ARGUMENTS = """
from twinkle.cli import CLI
args = CLI.from_args()
MODEL_ID = args.model.model_id
LORA_PATH = args.lora.lora_path or '/path/to/lora'
SAMPLER_GPUS = args.infra.sampler_gpus or 1
"""


@pytest.fixture
def long_model(tiny_llama_dir, tmp_path):
    """The tiny model with room for 16,384 tokens."""
    folder = tmp_path / "long"
    shutil.copytree(tiny_llama_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16384}))
    return folder


@pytest.mark.parametrize("head", [BY_ENVIRONMENT, BY_ARGUMENTS], ids=["environment", "arguments"])
def test_the_sampling_script_answers_with_an_adapter(run, long_model, tmp_path, head):
    from twinkle import LoraConfig
    from twinkle.model import TransformersModel

    model = TransformersModel(model_id=str(long_model))
    model.add_adapter_to_model("default", LoraConfig(r=32, target_modules="all-linear"))
    adapter = model.save("condenser", output_dir=str(tmp_path))
    settings = {"LORA_PATH": adapter, "TWINKLE_LORA_PATH": adapter}
    settings["TWINKLE_MODEL_ID"] = "Qwen/Qwen3.5-4B"
    printed = run(SAMPLE.replace("HEAD", head), model=long_model, **settings).stderr
    assert "group sampler: 1 x cpu by TWINKLE_DEVICE, not GPU, ranks [0]" in printed
    assert "vLLMSampler" in printed
    found = re.findall(r"case (\d): (\w+) .*, (\d+) tokens, (\w+)", printed)
    assert [(case, tag) for case, tag, _, _ in found] == [
        ("1", "code"),
        ("2", "news"),
        ("3", "html"),
    ]
    assert all(0 < int(count) <= 2048 and why in ("stop", "length") for _, _, count, why in found)
    assert Path(adapter).is_dir()
