"""Fine-tuning through Twinkle's own client: a server trains the adapter, this script has the data.

    twinkle serve --name smollm2 --state twinkle-state            # in another terminal
    python cookbook/client/twinkle/self_cognition.py [twinkle://... of an earlier run]

With a path it goes on from there. TWINKLE_MODEL_ID: a name that is served. TWINKLE_SERVER_URL,
TWINKLE_SERVER_TOKEN: where it is, and a key. TWINKLE_STEPS: batches, of 8 rows each.
"""

import os
import sys
from itertools import chain, islice, repeat

from twinkle import get_logger
from twinkle.data_format import LoraConfig
from twinkle.preprocessor import SelfCognitionProcessor
from twinkle_client import init_twinkle_client
from twinkle_client.dataloader import DataLoader
from twinkle_client.dataset import Dataset, DatasetMeta
from twinkle_client.model import MultiLoraTransformersModel

logger = get_logger()
MODEL = os.environ.get("TWINKLE_MODEL_ID", "smollm2")
STEPS = int(os.environ.get("TWINKLE_STEPS", "30"))
DATA = os.environ.get("TWINKLE_DATASET_ID", "examples/data/self_cognition.jsonl")
BATCH = 8


def main():
    client = init_twinkle_client()
    for run in client.list_training_runs(limit=3):
        logger.info(run.model_dump_json())
        for checkpoint in client.list_checkpoints(run.training_run_id):
            logger.info(f"  {checkpoint.twinkle_path}, {checkpoint.size_bytes} bytes")

    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=MODEL, max_length=256)
    dataset.map(SelfCognitionProcessor("Nova", "the Sky Team"))
    dataset.encode()
    batches = DataLoader(dataset=dataset, batch_size=BATCH)

    model = MultiLoraTransformersModel(model_id=MODEL)
    lora = LoraConfig(r=16, target_modules="all-linear")
    model.add_adapter_to_model("default", lora, gradient_accumulation_steps=2)
    model.set_loss("CrossEntropyLoss")
    model.set_optimizer("AdamW", lr=5e-4)
    model.set_lr_scheduler(
        "CosineWarmupScheduler", num_warmup_steps=2, num_training_steps=STEPS // 2 + 2
    )
    consumed = 0
    if len(sys.argv) > 1:
        consumed = model.resume_from_checkpoint(sys.argv[1])["consumed_train_samples"]
    logger.info(model.get_train_configs())

    rows = chain.from_iterable(repeat(batches))
    for step, batch in enumerate(islice(rows, STEPS), 1):
        model.forward_backward(inputs=batch)
        model.clip_grad_and_step()
        consumed += len(batch)
        if step % 2 == 0:
            print(f"step {step}: loss {model.calculate_metric(is_training=True)['loss']:.4f}")
    saved = model.save("self-cognition", save_optimizer=True, consumed_train_samples=consumed)
    print("saved", saved)


if __name__ == "__main__":
    main()
