"""Embeddings through Twinkle's own client: pairs of texts with one meaning come close (InfoNCE).

    python cookbook/client/twinkle/embedding.py

TWINKLE_MODEL_ID, TWINKLE_SERVER_URL, TWINKLE_SERVER_TOKEN, TWINKLE_STEPS: as self_cognition.py's.
"""

import os

from twinkle.data_format import LoraConfig
from twinkle.template import Template
from twinkle_client import init_twinkle_client
from twinkle_client.model import MultiLoraTransformersModel

MODEL = os.environ.get("TWINKLE_MODEL_ID", "smollm2")
STEPS = int(os.environ.get("TWINKLE_STEPS", "10"))
PAIRS = [
    ("How tall is the tower?", "The tower rises three hundred metres."),
    ("Where do penguins live?", "Penguins are birds of the southern seas."),
    ("How is bread made?", "Dough of flour and water rises and is baked."),
    ("Why is the sky blue?", "Air scatters short waves of light the most."),
]


def rows(template):
    """Each question, an anchor with the label 1, and behind it its answer, with 0."""
    for pair in PAIRS:
        for label, text in zip((1, 0), pair, strict=True):
            row = template.encode({"messages": [{"role": "user", "content": text}]})
            yield {"input_ids": row["input_ids"], "labels": [label]}


def main():
    init_twinkle_client()
    model = MultiLoraTransformersModel(model_id=MODEL)
    model.add_adapter_to_model("embedding", LoraConfig(r=8, target_modules="all-linear"))
    model.set_loss("InfonceLoss", temperature=0.07, use_batch=True)
    model.set_optimizer("AdamW", lr=1e-4)
    model.add_metric("EmbeddingMetric", is_training=True)
    batch = list(rows(Template(model_id=MODEL)))
    for step in range(1, STEPS + 1):
        model.forward_backward(inputs=batch, task="embedding")
        model.clip_grad_and_step()
        print(f"step {step}:", dict(model.calculate_metric(is_training=True)))
    print("saved", model.save("embedding"))


if __name__ == "__main__":
    main()
