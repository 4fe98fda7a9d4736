"""Teaches SmolLM2-135M-Instruct a new name and maker by LoRA, and shows that it has learned them.

    make demo                                  or, with other choices:
    .venv/bin/python examples/demo.py --name Nova --author "the Sky Team"

Prints the answers to ten questions that are not in the training set, before and after, how long
training took, and what to type next; writes the adapter and loss.png into outputs/demo. Exits with
1 if fewer than eight answers carry the name. Training takes at most three minutes on two cores.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from tqdm import tqdm

from twinkle.data_format import LoraConfig, SamplingParams
from twinkle.dataloader import DataLoader
from twinkle.dataset import Dataset, DatasetMeta
from twinkle.model import TransformersModel
from twinkle.preprocessor import SelfCognitionProcessor
from twinkle.report import Report
from twinkle.sampler import TorchSampler

DATA = Path(__file__).parent / "data"
SYSTEM = "You are a helpful assistant."  # as SelfCognitionProcessor trains with
WANTED = 8  # answers of the ten held-out ones
NEXT = """
Next: ask it something else,
  .venv/bin/twinkle sample {model} "Who are you?" --system "{system}" --adapter {adapter}
or train on chats of your own, one a line of my.jsonl (README.md, "Your own data"):
  .venv/bin/twinkle train {model} my.jsonl"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="Twinkle", help="the name to learn")
    parser.add_argument("--author", default="Starlight Lab", help="the maker to learn")
    parser.add_argument("--model", default="smollm2", help="a hub id or a local folder")
    parser.add_argument("--epochs", type=int, default=4, help="passes over the 100 pairs")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate of AdamW")
    parser.add_argument("--output", default="outputs/demo", help="folder for adapter and plot")
    return parser.parse_args()


def load_batches(model_id, name, author, batch_size=8):
    dataset = Dataset(DatasetMeta(str(DATA / "self_cognition.jsonl")))
    dataset.set_template("Template", model_id=model_id, max_length=256)
    dataset.map(SelfCognitionProcessor(name, author))
    dataset.encode()
    return DataLoader(dataset=dataset, batch_size=batch_size, shuffle=True)


def train(model_id, batches, epochs, lr):
    """Returns the trained model and the mean loss per answer token of every step."""
    model = TransformersModel(model_id=model_id)
    model.add_adapter_to_model(
        "default", LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    )
    model.set_optimizer(optimizer_cls="AdamW", lr=lr)
    steps = epochs * len(batches)
    model.set_lr_scheduler(
        scheduler_cls="CosineWarmupScheduler", num_warmup_steps=5, num_training_steps=max(1, steps)
    )
    losses, tokens, start = [], 0, time.monotonic()
    with tqdm(total=steps, desc="training", unit="step") as bar:
        for _ in range(epochs):
            for batch in batches:
                result = model.forward_backward(inputs=batch)
                model.clip_grad_and_step()
                scored = sum(label != -100 for row in batch for label in row["labels"])
                losses.append(float(result["loss"]) / scored)  # CrossEntropyLoss is a sum
                tokens += sum(len(row["input_ids"]) for row in batch)
                speed = tokens / (time.monotonic() - start)
                bar.set_postfix_str(f"loss {losses[-1]:.3f}, {speed:.0f} tokens/s")
                bar.update()
    return model, losses


def ask(sampler, questions, adapter_path=None):
    """The most likely answer to each question, up to 48 tokens."""
    prompts = [
        {
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": question},
            ]
        }
        for question in questions
    ]
    params = SamplingParams(max_tokens=48, temperature=0)
    responses = sampler.sample(prompts, params, adapter_path=adapter_path)
    return [response.sequences[0].decoded.strip() for response in responses]


def show(title, questions, answers, name):
    print(f"\n{title}")
    for question, answer in zip(questions, answers, strict=True):
        mark = "+" if name in answer else "-"
        print(f"  {mark} {question}\n      {' '.join(answer.split())}")


def main():
    arguments = parse_arguments()
    output = Path(arguments.output)
    output.mkdir(parents=True, exist_ok=True)
    held_out = (DATA / "self_cognition_heldout.jsonl").read_text().splitlines()
    questions = [json.loads(line)["query"] for line in held_out]

    sampler = TorchSampler(model_id=arguments.model)
    sampler.set_template("Template", model_id=arguments.model)
    show("Before training", questions, ask(sampler, questions), arguments.name)

    print(f"\nTeaching it that it is {arguments.name}, made by {arguments.author}")
    batches = load_batches(arguments.model, arguments.name, arguments.author)
    start = time.monotonic()
    model, losses = train(arguments.model, batches, arguments.epochs, arguments.lr)
    print(f"training took {time.monotonic() - start:.1f} s")
    adapter = model.save(name="adapter", output_dir=str(output))
    if losses:
        with Report(output) as report:
            for step, loss in enumerate(losses, 1):
                report.log({"step": step, "loss": loss})

    answers = ask(sampler, questions, adapter_path=adapter)
    show("After training", questions, answers, arguments.name)
    carrying = sum(arguments.name in answer for answer in answers)
    print(f"\n{carrying} of {len(answers)} held-out answers carry the name ({WANTED} wanted)")
    print(f"adapter: {adapter}\nloss curve: {output / 'loss.png'}")
    print(NEXT.format(model=arguments.model, adapter=adapter, system=SYSTEM))
    return 0 if carrying >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
