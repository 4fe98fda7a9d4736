"""Fine-tunes a model by LoRA: the same steps as finetune.cpp, with the same losses bit for bit.

.venv/bin/python examples/finetune.py smollm2 examples/data/self_cognition.jsonl outputs/finetune 40
"""

import argparse

from twinkle.data_format import LoraConfig
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.preprocessor import SelfCognitionProcessor


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="directory or hub id")
    parser.add_argument("data", nargs="?", default="examples/data/self_cognition.jsonl")
    parser.add_argument("output", nargs="?", default="outputs/finetune")
    parser.add_argument("steps", nargs="?", type=int, default=40)
    arguments = parser.parse_args()

    dataset = Dataset(dataset_meta=DatasetMeta(arguments.data))
    dataset.set_template("Template", model_id=arguments.model, max_length=256)
    dataset.map(SelfCognitionProcessor("Twinkle", "Starlight Lab"))
    dataset.encode()
    dataloader = DataLoader(dataset=dataset, batch_size=8)

    model = TransformersModel(model_id=arguments.model)
    model.add_adapter_to_model(
        "default", LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
    )
    model.set_optimizer(optimizer_cls="AdamW", lr=1e-3)

    step = 0
    while step < arguments.steps:
        for batch in dataloader:
            loss = model.forward_backward(inputs=batch)["loss"]
            model.clip_grad_and_step(max_grad_norm=1.0)
            print(f"step {step} loss {float(loss):.17g}", flush=True)
            step += 1
            if step == arguments.steps:
                break
    print("saved", model.save("adapter", output_dir=arguments.output))


if __name__ == "__main__":
    main()
