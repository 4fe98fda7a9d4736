"""Sampling through the `tinker` SDK, from the base model or from saved weights.

    python cookbook/client/tinker/sample.py [tinker://... of self_cognition.py's last line]

TWINKLE_MODEL_ID, TWINKLE_SERVER_URL, TWINKLE_SERVER_TOKEN: as self_cognition.py's.
"""

import os
import sys

from twinkle import init_tinker_client
from twinkle.template import Template

init_tinker_client()
from tinker import ServiceClient, types  # noqa: E402

MODEL = os.environ.get("TWINKLE_MODEL_ID", "smollm2")


def main():
    service = ServiceClient(
        base_url=os.environ.get("TWINKLE_SERVER_URL", "http://localhost:8000"),
        api_key=os.environ.get("TWINKLE_SERVER_TOKEN", "EMPTY_TOKEN"),
    )
    weights = {"model_path": sys.argv[1]} if len(sys.argv) > 1 else {}
    sampler = service.create_sampling_client(base_model=MODEL, **weights)
    template = Template(model_id=MODEL)
    chat = {"messages": [{"role": "user", "content": "Who are you?"}]}
    prompt = template.encode(chat, add_generation_prompt=True)["input_ids"]
    sampled = sampler.sample(
        prompt=types.ModelInput.from_ints(list(map(int, prompt))),
        sampling_params=types.SamplingParams(max_tokens=64, temperature=0.7),
        num_samples=2,
    ).result()
    for i, sequence in enumerate(sampled.sequences):
        print(i, template.decode(sequence.tokens, skip_special_tokens=True))


if __name__ == "__main__":
    main()
