"""Writes the state of a service with some of everything in it, as a build of Twinkle leaves it when
it is killed, for tests of the builds that come after it:

    python -m service.starts.old_state PROGRAM MODEL FOLDER    # in tests/
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from service.message import message, pb, train
from service.wire import Wire, wait_until

KEY = "tml-old"
TOKENS = [1, 5, 9, 14, 42]


def a_batch(wire, run, seq_id):
    made = message(run, seq_id, TOKENS, weights=[1.0] * len(TOKENS))
    return train(wire, made).json()


def sample(wire, sampler, seq_id, **more):
    """What it is accepted as."""
    prompt = {"chunks": [{"type": "encoded_text", "tokens": TOKENS}]}
    body = {"sampling_session_id": sampler, "seq_id": seq_id, "prompt": prompt, **more}
    params = {"max_tokens": 8, "temperature": 0.0, "stop": []}
    return wire.ok("asample", body | {"sampling_params": params})


def scores(wire, sampler, seq_id):
    """The prompt's log-probabilities, from its second token on."""
    told = wire.result(sample(wire, sampler, seq_id, prompt_logprobs=True))
    return list(memoryview(pb.SampleResponse.FromString(told).prompt_logprobs).cast("f"))[1:]


def fill(wire):
    """What there is then, by name. The run's request 8 waits for 7."""
    session = wire.session()
    lora = {"rank": 1, "seed": 1, "train_mlp": False, "train_unembed": False}
    body = {"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": lora}
    run = wire.result(wire.ok("create_model", body))["model_id"]
    wire.result(a_batch(wire, run, 1))
    wire.result(wire.step(run, 2, learning_rate=0.1).json())
    body = {"model_id": run, "seq_id": 3, "path": "kept"}
    path = wire.result(wire.ok("save_weights", body))["path"]
    body = {"model_id": run, "seq_id": 4, "sampling_session_seq_id": 0}
    sampler = wire.result(wire.ok("save_weights_for_sampler", body))["sampling_session_id"]
    told = scores(wire, sampler, 0)
    unread = sample(wire, sampler, 1)
    a_batch(wire, run, 5)
    wire.result(wire.step(run, 6, learning_rate=0.1).json())
    a_batch(wire, run, 8)
    return {
        "session": session, "run": run, "path": path, "sampler": sampler, "scores": told,
        "unread": unread["request_id"], "waits": f"{run}:8",
    }  # fmt: skip


def main(program, model, folder):
    options = ["--model", model, "--name", "tiny", "--state", folder, "--port", "0"]
    server = subprocess.Popen(
        [program, "serve", *options, "--snapshot-seconds", "0"], stdout=subprocess.PIPE, text=True
    )
    wire = Wire(re.search(r"http://\S+", server.stdout.readline())[0], KEY)
    told = fill(wire)
    snapshots = Path(folder) / "snapshots" / told["run"]
    wait_until(lambda: not (snapshots / "2").exists())  # the one of 6 is written down
    server.kill()
    server.wait()
    (Path(folder) / "told.json").write_text(json.dumps(told, indent=1) + "\n")
    # A state is of a model with this very file, which transformers writes otherwise some day.
    shutil.copy(Path(model) / "config.json", Path(folder) / "config.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
