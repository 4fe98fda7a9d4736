"""Sampling through Twinkle's own client, from the base model or with saved weights.

    python cookbook/client/twinkle/sample.py [twinkle://... of self_cognition.py's last line]

TWINKLE_MODEL_ID, TWINKLE_SERVER_URL, TWINKLE_SERVER_TOKEN: as self_cognition.py's.
"""

import os
import sys

from twinkle_client import init_twinkle_client
from twinkle_client.sampler import vLLMSampler

MODEL = os.environ.get("TWINKLE_MODEL_ID", "smollm2")


def main():
    init_twinkle_client()
    sampler = vLLMSampler(model_id=MODEL)
    sampler.set_template("Template")
    chats = [
        {"messages": [{"role": "user", "content": text}]}
        for text in ("Who are you?", "What can you do?")
    ]
    responses = sampler.sample(
        chats,
        {"max_tokens": 64, "temperature": 0.7},
        adapter_uri=sys.argv[1] if len(sys.argv) > 1 else None,
        num_samples=2,
    )
    for chat, response in zip(chats, responses, strict=True):
        for i, sequence in enumerate(response.sequences):
            print(i, chat["messages"][0]["content"], "->", sequence.decoded)


if __name__ == "__main__":
    main()
