"""Two tenants train on one server through the `tinker` SDK while it is killed, and notice nothing.

    .venv/bin/python examples/service_demo.py

Starts `twinkle serve`, teaches SmolLM2-135M-Instruct a name of its own for each of two tenants, in
two adapters, kills the server (SIGKILL) half way and starts it again. Then does the same without
the kill, and compares the sha256 of what was saved. Prints what both adapters answer. Exits with 1
if the adapters differ. Takes about two minutes on two cores; writes into outputs/demo/service.
"""

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.update(TINKER_TELEMETRY="0", HF_HUB_DISABLE_PROGRESS_BARS="1")
import tinker
from demo import SYSTEM, load_batches
from tinker import types
from tqdm import tqdm

from twinkle.template import Template

# The SDK means futures that are used as what they promise; these are not.
warnings.filterwarnings("ignore", "Using the future as", FutureWarning)

TENANTS = {"Nova": "the Sky Team", "Orion": "the River Team"}  # names, and who made them
QUESTION = "Who are you?"
ADAM = types.AdamParams(learning_rate=1e-3)


class Server:
    """`twinkle serve` in a process of its own, on a free port of loopback."""

    def __init__(self, model, state):
        self.command = [sys.executable, "-P", "-m", "twinkle", "serve", "--model", model]
        self.command += ["--state", str(state), "--until-stdin-ends"]
        self.port = "0"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [*self.command, "--port", self.port],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        said = self.process.stdout.readline()
        found = re.search(r"(http://\S+):(\d+)", said)
        if not found:
            sys.exit(f"the server did not start: {' '.join(self.command)}")
        self.url, self.port = found[0], found[2]

    def stop(self, how):
        self.process.send_signal(how)
        self.process.wait()


def datum(row):
    """A row of the demo's data set, whose labels are the tokens that follow, as the SDK's."""
    labels = [int(label) for label in row["labels"][:-1]]
    return types.Datum(
        model_input=types.ModelInput.from_ints([int(token) for token in row["input_ids"][:-1]]),
        loss_fn_inputs={
            "target_tokens": [max(label, 0) for label in labels],
            "weights": [float(label >= 0) for label in labels],
        },
    )


def teach(url, model, name, batches, stepped):
    """Trains one tenant's adapter, saves it, and returns its answer. Calls stepped(text) after each
    step."""
    service = tinker.ServiceClient(base_url=url, api_key=f"tml-{name}")
    training = service.create_lora_training_client(base_model=model, rank=16, seed=1)
    for batch in batches:
        data = [datum(row) for row in batch]
        passed = training.forward_backward(data, "cross_entropy")
        training.optim_step(ADAM).result()
        answers = sum(sum(d.loss_fn_inputs["weights"].data) for d in data)
        stepped(f"{name}: loss {passed.result().metrics['loss:sum'] / answers:.3f}")
    training.save_state("end").result()
    sampler = training.save_weights_and_get_sampling_client()
    template = Template(model_id=model)
    chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    prompt = template.encode({"messages": chat}, add_generation_prompt=True)["input_ids"]
    params = types.SamplingParams(max_tokens=32, temperature=0)
    prompt = types.ModelInput.from_ints([int(token) for token in prompt])
    drawn = sampler.sample(prompt, num_samples=1, sampling_params=params).result()
    return template.decode(drawn.sequences[0].tokens, skip_special_tokens=True).strip()


def run(title, model, data, state, kill):
    """Both tenants at once; what they answer, and the sha256 of their adapters."""
    shutil.rmtree(state, ignore_errors=True)
    server = Server(model, state)
    steps = sum(map(len, data.values()))
    bar = tqdm(total=steps, desc=title, unit="step")
    done, killed, lock = threading.Event(), threading.Event(), threading.Lock()

    def stepped(text):
        with lock:
            bar.set_postfix_str(text)
            bar.update()
            if kill and bar.n == steps // 2:  # the other tenant waits for an answer, mostly
                server.stop(signal.SIGKILL)
                bar.write(f"the server was killed at step {bar.n} of {steps}")
                killed.set()

    def start_again():
        while not killed.wait(0.05):
            if done.is_set():
                return
        begun = time.monotonic()
        server.start()
        bar.write(f"and serves again after {time.monotonic() - begun:.1f} s")

    with ThreadPoolExecutor(3) as pool:
        starter = pool.submit(start_again) if kill else None
        work = [
            pool.submit(teach, server.url, model, name, batches, stepped)
            for name, batches in data.items()
        ]
        try:
            answers = [one.result() for one in work]
        finally:
            done.set()
    bar.close()
    if starter:
        starter.result()
    server.stop(signal.SIGTERM)
    files = state.glob("checkpoints/*/weights/end/adapter_model.safetensors")
    return answers, sorted(hashlib.sha256(f.read_bytes()).hexdigest() for f in files)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="a hub id or a local folder")
    parser.add_argument("--steps", type=int, default=16, help="of each tenant")
    parser.add_argument("--output", default="outputs/demo/service", help="folder for the states")
    arguments = parser.parse_args()
    output = Path(arguments.output).absolute()
    data = {}
    for name, author in TENANTS.items():
        batches = list(load_batches(arguments.model, name, author))
        data[name] = [batches[i % len(batches)] for i in range(arguments.steps)]
    print(f"Two tenants teach {arguments.model} their names: {' and '.join(TENANTS)}")
    answers, killed = run("killed", arguments.model, data, output / "killed", kill=True)
    for name, answer in zip(TENANTS, answers, strict=True):
        print(f"  {name}'s adapter, asked {QUESTION!r}: {' '.join(answer.split())}")
    _, undisturbed = run("undisturbed", arguments.model, data, output / "undisturbed", kill=False)
    for which, hashes in (("killed", killed), ("undisturbed", undisturbed)):
        print(f"  {which:>11}: sha256 {', '.join(digest[:16] for digest in hashes)}")
    same = len(killed) == len(TENANTS) and killed == undisturbed
    print("The adapters are " + ("the same, bit for bit." if same else "NOT the same."))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
