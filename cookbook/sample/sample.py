"""Samples replies to three chats, from a model or from it with an adapter.

python cookbook/sample/sample.py --model-id smollm2 --lora-path output/last-checkpoint
python cookbook/sample/sample.py --mode ray --sampler-gpus 2 --model-id ...
"""

import twinkle
from twinkle import DeviceGroup, DeviceMesh, get_logger
from twinkle.cli import CLI
from twinkle.data_format import SamplingParams
from twinkle.sampler import vLLMSampler

logger = get_logger()
args = CLI.from_args()
MODEL = args.model.model_id or "smollm2"
SAMPLERS = args.infra.sampler_gpus or 1
CHATS = [
    {"messages": [{"role": "user", "content": text}]}
    for text in ("What is the capital of France?", "Name three colours.", "What is 7 times 8?")
]


def main():
    place = {}
    if args.infra.mode == "ray":
        groups = [DeviceGroup("sampler", ranks=list(range(SAMPLERS)), device_type="GPU")]
        twinkle.initialize(mode="ray", nproc_per_node=SAMPLERS, groups=groups)
        mesh = DeviceMesh.from_sizes(dp_size=SAMPLERS)
        place = {"remote_group": "sampler", "device_mesh": mesh}
    sampler = vLLMSampler(model_id=MODEL, engine_args={"enable_lora": True}, **place)
    sampler.set_template("Template", model_id=MODEL)
    params = SamplingParams(
        max_tokens=args.sampling.max_tokens or 128,
        temperature=args.sampling.temperature,
        top_p=args.sampling.top_p,
        num_samples=args.sampling.num_samples,
    )
    for chat, response in zip(
        CHATS, sampler.sample(CHATS, params, adapter_path=args.lora.lora_path), strict=True
    ):
        for reply in response.sequences:
            logger.info(f"{chat['messages'][-1]['content']}\n{reply.decoded}")


if __name__ == "__main__":
    main()
