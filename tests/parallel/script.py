"""The script of each process of tests/parallel: MODEL OUT STEPS [BEFORE FOLDER], from scratch or
after so many steps that are saved in the folder. Writes losses and norms. FSDP: ranks that share a
copy of the base. SAVE: steps between two saves. OPTIMIZER: its name and options, as JSON.
DO="RANK:WHAT": an act of one rank, or of "all", at the fourth step; the others go on, or end. WHAT
of "at once" or "early", then "exit", "kill" or "raise": the rank ends before it calls initialize,
or before its first model."""

import gc
import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

from parallel.batches import batch_of

import twinkle
from twinkle import DeviceMesh, LoraConfig
from twinkle.engine import group
from twinkle.engine.ranks import ranks_of
from twinkle.errors import InternalError, InvalidError
from twinkle.metric import CompletionRewardMetric
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler

# A shell that starts the tests with `&` has them, and so this, ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
model_dir, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
before, folder = (int(sys.argv[4]), sys.argv[5]) if len(sys.argv) > 4 else (0, None)
size, fsdp = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "FSDP"))
mesh = DeviceMesh.from_sizes(dp_size=size // fsdp, fsdp_size=fsdp)
rank, _, what = os.environ.get("DO", ":").partition(":")


def end(when):
    """Where this rank is to end then."""
    if rank != os.environ.get("RANK") or not what.startswith(when):
        return
    how = what.removeprefix(when).strip()
    print("ends", flush=True)
    if how == "exit":
        sys.exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise MemoryError("too many rows")


end("at once")
# Launchers may take long to start ranks; a test in which one never comes need not.
group._FIRST_MEETING_S = float(os.environ.get("FIRST_MEETING_SECONDS", group._FIRST_MEETING_S))
twinkle.initialize(mode="local", global_device_mesh=mesh)
if what.startswith("early"):
    ranks_of(mesh).gather("a start", None)  # all have initialized
end("early")


def leave_memory(more):
    """This process can take so many bytes more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))


def gather_too_much():
    """The first rank sends the second more than that has memory for; then all gather once more."""
    is_first = os.environ["RANK"] == "0"
    if not is_first:
        leave_memory(50 << 20)
    try:
        ranks_of(mesh).gather("numbers", b"1" * (100 << 20) if is_first else None)
    except InternalError as error:
        print(f"once: {error}", file=sys.stderr)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    ranks_of(mesh).gather("numbers", None)


def drop(holds_itself):
    """A model that this leaves to nobody, after calls that were refused."""
    other = TransformersModel(model_id=model_dir)
    for call in (other.forward_backward, other.forward_only):
        try:
            call(inputs=None)
        except InvalidError:
            continue
        raise AssertionError(f"{call.__name__} takes None")
    try:
        other.step()
    except InvalidError:
        other.own = other if holds_itself else None


def say_when_it_samples():
    """The first rank does: its engine counts the steps that all take together."""
    while model.engine.stats()["num_sampling_steps"] == 0:
        time.sleep(0.01)
    print("samples", flush=True)


def do(what):
    """How often the rank's rows are taken from then on."""
    if what.startswith("sleep"):
        print("sleeps", flush=True)
        time.sleep(float(what.split()[1]))
    elif what.startswith("wait for "):
        while not Path(what.removeprefix("wait for ")).exists():
            time.sleep(0.02)
    elif what == "raise":
        raise MemoryError("too many rewards")
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "starve":
        leave_memory(0)
        return 400  # more than fits into what earlier steps have left
    elif what == "save":
        model.save("other", output_dir=out)
    elif what == "sample":
        threading.Thread(target=say_when_it_samples, daemon=True).start()
        prompts = [{"input_ids": [5, 6, 7]}] * 8
        TorchSampler(model=model).sample(prompts, max_tokens=500, num_samples=64)
    elif what == "publish":
        model.engine.publish(tenant="adapter/default")
    elif what == "calculate":
        CompletionRewardMetric().calculate()
    elif what == "gather":
        gather_too_much()
    elif what == "fork":
        fork = multiprocessing.get_context("fork")
        helper = fork.Process(target=time.sleep, args=(60,), daemon=True)
        helper.start()
        print(f"fork {helper.pid}", flush=True)
    elif what in ("drop", "drop a cycle"):
        gc.disable()
        drop(what == "drop a cycle")
        if what == "drop a cycle":
            TransformersModel(model_id=model_dir)  # with which the other one has ended
        if os.environ["RANK"] == "0":
            gc.collect()  # as Python does, on each rank at another time
    elif what == "leave":
        sys.exit(0)
    return 1


model = TransformersModel(model_id=model_dir)
# A scale of 3 is no power of two: products are rounded, as most users' are.
config = LoraConfig(r=8, lora_alpha=24, target_modules="all-linear", lora_dropout=0.1)
model.add_adapter_to_model("default", config, gradient_accumulation_steps=2)
optimizer, options = json.loads(os.environ.get("OPTIMIZER", '["AdamW", {}]'))
model.set_optimizer(optimizer, lr=1e-3, **options)
if folder:
    model.load("last", output_dir=folder, load_optimizer=True)
save_steps = int(os.environ.get("SAVE", "0"))
told, times = [], 1
for step in range(before, before + steps):
    if step == 3 and rank in ("all", os.environ.get("RANK")):
        times = do(what)
    batch = batch_of(step)
    model.forward_backward(inputs=batch[mesh.get_slice(len(batch))] * times)
    model.clip_grad_and_step()
    metric = model.calculate_metric(is_training=True)
    told.append([metric["loss"], metric.get("grad_norm")])
    print(f"step {step}", flush=True)
    if save_steps and (step + 1) % save_steps == 0:
        model.save("last", output_dir=out, save_optimizer=True)
    if os.environ.get("ENDLESS"):
        time.sleep(0.05)
model.save("last", output_dir=out, save_optimizer=True)
Path(os.environ["TOLD"], os.environ.get("RANK", "0")).write_text(json.dumps(told))
