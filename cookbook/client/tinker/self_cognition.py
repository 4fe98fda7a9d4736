"""Fine-tuning through the `tinker` SDK: a server trains the adapter, this script has the data.

    twinkle serve --name smollm2 --state twinkle-state            # in another terminal
    python cookbook/client/tinker/self_cognition.py

TWINKLE_MODEL_ID: a name that is served. TWINKLE_SERVER_URL, TWINKLE_SERVER_TOKEN: where it is, and
a key. TWINKLE_STEPS: batches, of 8 rows each.
"""

import os
from itertools import chain, islice, repeat

import numpy as np

from twinkle import init_tinker_client
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.preprocessor import SelfCognitionProcessor
from twinkle.server.common import input_feature_to_datum

init_tinker_client()
from tinker import ServiceClient, types  # noqa: E402

MODEL = os.environ.get("TWINKLE_MODEL_ID", "smollm2")
STEPS = int(os.environ.get("TWINKLE_STEPS", "30"))
DATA = os.environ.get("TWINKLE_DATASET_ID", "examples/data/self_cognition.jsonl")


def main():
    dataset = Dataset(DatasetMeta(DATA))
    dataset.set_template("Template", model_id=MODEL, max_length=256)
    dataset.map(SelfCognitionProcessor("Nova", "the Sky Team"))
    dataset.encode()
    batches = DataLoader(dataset=dataset, batch_size=8)

    service = ServiceClient(
        base_url=os.environ.get("TWINKLE_SERVER_URL", "http://localhost:8000"),
        api_key=os.environ.get("TWINKLE_SERVER_TOKEN", "EMPTY_TOKEN"),
    )
    trainer = service.create_lora_training_client(base_model=MODEL, rank=16)
    for step, batch in enumerate(islice(chain.from_iterable(repeat(batches)), STEPS), 1):
        data = [input_feature_to_datum(row) for row in batch]
        # Both are on their way before the first is waited for: the server has no pause.
        passed = trainer.forward_backward(data, "cross_entropy")
        stepped = trainer.optim_step(types.AdamParams(learning_rate=5e-4))
        outputs = passed.result().loss_fn_outputs
        stepped.result()
        logprobs = np.concatenate([output["logprobs"].to_numpy() for output in outputs])
        weights = np.concatenate([one.loss_fn_inputs["weights"].to_numpy() for one in data])
        print(f"step {step}: loss {-np.dot(logprobs, weights) / weights.sum():.4f} a token")
    print("saved", trainer.save_state("self-cognition", overwrite=True).result().path)
    print("to sample", trainer.save_weights_for_sampler("self-cognition").result().path)


if __name__ == "__main__":
    main()
