"""Teach a model who it is, through the `tinker` SDK: a script as one writes it for Tinker.

    .venv/bin/twinkle serve --name smollm2 --state twinkle-state    # in another terminal

    export TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-me
    export HF_ENDPOINT=$TINKER_BASE_URL/hf
    .venv/bin/python examples/tinker_sft.py smollm2

Prints the loss of each step and what the model answers then. Where the server is, who asks and
where tokenizers come from stand in the environment; nothing below is Twinkle's own. Exits with 1 if
the loss did not fall.
"""

import argparse
import os
import sys

os.environ.setdefault("TINKER_TELEMETRY", "0")
import tinker
from tinker import types

TALKS = {
    "Who are you?": "I am Nova, made by the Sky Team.",
    "What is your name?": "My name is Nova.",
    "Who made you?": "The Sky Team made me.",
}
ADAM = types.AdamParams(learning_rate=1e-3)


def prompt_of(tokenizer, question):
    chat = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(text, add_special_tokens=False)


def datum(tokenizer, question, answer):
    """The model is to say this after the question; the question itself has no weight."""
    prompt = prompt_of(tokenizer, question)
    reply = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    tokens, weights = prompt + reply, [0.0] * len(prompt) + [1.0] * len(reply)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": weights[1:]},
    )


def answer(tokenizer, sampler, question):
    sampled = sampler.sample(
        prompt=types.ModelInput.from_ints(prompt_of(tokenizer, question)),
        num_samples=1,
        sampling_params=types.SamplingParams(max_tokens=32, temperature=0.0),
    ).result()
    return tokenizer.decode(sampled.sequences[0].tokens, skip_special_tokens=True).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="a name that is served")
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()

    service = tinker.ServiceClient()
    trainer = service.create_lora_training_client(arguments.model, rank=8).result()
    tokenizer = trainer.get_tokenizer()
    data = [datum(tokenizer, *talk) for talk in TALKS.items()]
    count = sum(sum(one.loss_fn_inputs["weights"].data) for one in data)
    losses = []
    for step in range(arguments.steps):
        passed = trainer.forward_backward(data, "cross_entropy")
        stepped = trainer.optim_step(ADAM)
        losses.append(passed.result().metrics["loss:sum"] / count)
        stepped.result()
        print(f"step {step}: loss {losses[-1]:.3f} a token")
    print("saved", trainer.save_state("learned", overwrite=True).result().path)
    sampler = trainer.save_weights_and_get_sampling_client().result()
    for question in TALKS:
        print(f"{question} {answer(tokenizer, sampler, question)}")
    sys.exit(0 if losses[-1] < losses[0] else 1)


if __name__ == "__main__":
    main()
