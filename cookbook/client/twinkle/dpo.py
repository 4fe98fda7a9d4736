"""Direct preference optimization through Twinkle's own client; the reference is the base model.

    python cookbook/client/twinkle/dpo.py

TWINKLE_DATASET_ID: rows {"prompt": "...", "chosen": "...", "rejected": "..."}. TWINKLE_MODEL_ID,
TWINKLE_SERVER_URL, TWINKLE_SERVER_TOKEN, TWINKLE_STEPS: as self_cognition.py's.
"""

import os
from itertools import chain, islice, repeat

from twinkle.data_format import LoraConfig
from twinkle.preprocessor import EmojiDPOProcessor
from twinkle_client import init_twinkle_client
from twinkle_client.dataloader import DataLoader
from twinkle_client.dataset import Dataset, DatasetMeta
from twinkle_client.model import MultiLoraTransformersModel

MODEL = os.environ.get("TWINKLE_MODEL_ID", "smollm2")
STEPS = int(os.environ.get("TWINKLE_STEPS", "20"))
DATA = os.environ.get("TWINKLE_DATASET_ID", "ms://hjh0119/shareAI-Llama3-DPO-zh-en-emoji")
BETA = 0.1


def main():
    init_twinkle_client()
    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=MODEL, max_length=512)
    keys = {} if "emoji" in DATA else {"chosen_key": "chosen", "rejected_key": "rejected"}
    dataset.map(EmojiDPOProcessor(**keys))
    dataset.encode()
    batches = DataLoader(dataset=dataset, batch_size=2)

    model = MultiLoraTransformersModel(model_id=MODEL)
    model.add_adapter_to_model("default", LoraConfig(r=8, target_modules="all-linear"))
    model.set_loss("DPOLoss", beta=BETA)
    model.set_optimizer("AdamW", lr=1e-4)
    model.add_metric("DPOMetric", beta=BETA)
    for step, pairs in enumerate(islice(chain.from_iterable(repeat(batches)), STEPS), 1):
        batch = [row[side] for row in pairs for side in ("positive", "negative")]
        reference = model.forward_only(inputs=batch, disable_lora=True)
        model.forward_backward(inputs=batch, ref_outputs=reference)
        model.clip_grad_and_step()
        metrics = model.calculate_metric(is_training=True)
        print(f"step {step}:", ", ".join(f"{name} {metrics[name]:.4f}" for name in sorted(metrics)))
    print("saved", model.save("dpo", save_optimizer=True))


if __name__ == "__main__":
    main()
