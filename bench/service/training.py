"""S4 and S5: how much of the engine's speed training through `twinkle serve` keeps, its journal on.

S4's clients are of plain sockets: 64 programs with the SDK would keep more cores busy than there
are, and would be what is measured. S5's client is the real SDK.
"""

import json
import os
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from foreign import Meter, warmed_rounds
from rows import make_row
from service.client import (
    KEY,
    Client,
    Server,
    forward_backward_of,
    loss_of,
    request_bytes,
)
from service.questions import is_quick, share
from training import LEARNING_RATE, LENGTH, RANK, SIZE, differences, foreign_of, limit_tokens_s
from training import num_tokens as tokens_of
from verdict import EVEN, IN_PROCESS, ONE_CLIENT
from worker import with_model

NAME = "base"  # the model's, as clients ask for it
SEED = 7
CLIENTS, TOKENS = 64, 64  # tokens of each client's step
STEPS = 3  # for each client in a sample; the first of them begins beside all others' first
SAME = 1e-3  # for losses that are sums of the same terms in another order, relative
ADAM = {"learning_rate": LEARNING_RATE, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12}


@contextmanager
def service(run):
    from twinkle import program

    if program.path() is None:
        raise SystemExit("bench: bin/twinkle is not there: run `make build`")
    with tempfile.TemporaryDirectory() as state:
        what = ["--model", run.model, "--name", NAME, "--state", state, "--port", "0"]
        how = ["--device", run.device, "--log-level", "warning", "--until-stdin-ends"]
        command = [str(program.path()), "serve", *map(str, what), *how]
        with Server(*command, OMP_NUM_THREADS=str(run.threads)) as server:
            server.state = Path(state)
            yield server


def scored(batch):
    """Its rows of (tokens, targets, weights): a token without a label has no weight."""
    return [
        (ids, [max(0, label) for label in labels], [float(label >= 0) for label in labels])
        for ids, labels in zip(batch["ids"], batch["labels"], strict=True)
    ]


class Tenant:
    """A run, and the client that trains it: a connection a step, for a server closes idle ones."""

    def __init__(self, server, seed, rank=RANK):
        self._port, self._next = server.port, 1
        with Client(self._port) as client:
            self._run = client.new_run(NAME, rank, seed)

    def step(self, rows):
        """forward_backward and optim_step, both sent before either's result: (loss, seconds)."""
        passing = forward_backward_of(self._run, self._next, rows)
        start = time.perf_counter()
        with Client(self._port) as client:
            passed = client.sent(passing)
            stepped = client.post(
                "optim_step", model_id=self._run, seq_id=self._next + 1, adam_params=ADAM
            )["request_id"]
            self._next += 2
            loss = loss_of(client.result(passed))
            client.result(stepped)
        return loss, time.perf_counter() - start

    def save(self, route, **body):
        """The result of save_weights and its like."""
        with Client(self._port) as client:
            body |= {"model_id": self._run, "seq_id": self._next}
            self._next += 1
            return json.loads(client.result(client.post(route, **body)["request_id"]))


def engine_seconds(server):
    """Seconds that the engine has trained for, as /metrics tells."""
    with Client(server.port) as client:
        text = client.ask(request_bytes("/metrics")).decode()
    return float(re.search(r"^twinkle_training_seconds_total (\S+)", text, re.MULTILINE)[1])


@contextmanager
def beside(server, sample):
    """Measures a block into `sample`: wall_s, and foreign, where the server's work is our own."""
    before = server.cpu_seconds()
    with Meter() as meter:
        yield
    known = (server.cpu_seconds() - before) / meter.wall_s
    sample |= {"wall_s": meter.wall_s, "foreign": max(0.0, meter.foreign - known)}


def trained(server, tenants, steps):
    """A sample of tenants at once, each of which takes its steps one after the other.

    steps: of each tenant, the rows of each step.
    """
    out, before = {}, engine_seconds(server)
    with ThreadPoolExecutor(len(tenants)) as pool, beside(server, out):
        told = list(pool.map(lambda tenant, of: [*map(tenant.step, of)], tenants, steps))
    out["losses"] = [[loss for loss, _ in one] for one in told]
    out["seconds"] = [[seconds for _, seconds in one] for one in told]
    out["engine"] = (engine_seconds(server) - before) / out["wall_s"]
    return out


def s4(run):
    clients, tokens = (4, 16) if is_quick(run) else (CLIENTS, TOKENS)
    batches = run.inputs.full_batches(STEPS, clients, tokens)
    rows = [scored(batch) for batch in batches]
    with service(run) as server:
        tenants = [Tenant(server, seed) for seed in range(clients + 1)]
        ways = {  # the same tokens
            "ours": (tenants[:-1], [[[of[i]] for of in rows] for i in range(clients)]),
            "peer": (tenants[-1:], [rows]),
        }
        first = {}

        def take(index):
            round_ = {name: trained(server, *way) for name, way in ways.items()}
            if index == 0:  # adapters that have not learnt yet: one loss
                first.update({n: sum(of[0] for of in s["losses"]) for n, s in round_.items()})
            return round_

        rounds, noisy = warmed_rounds(run, "S4", take)
    difference = differences([first["ours"]], [first["peer"]])
    fields = {"noisy": noisy, "valid": difference <= SAME, "foreign": foreign_of(rounds)}
    fields |= run.machine_fields()
    count = sum(map(tokens_of, batches))
    busy = {n: share([round_[n]["engine"] for round_ in rounds], 0.5) for n in ways}
    yield make_row(
        "S4", f"{clients} clients of {tokens} tokens a step, rank {RANK}, together", ONE_CLIENT,
        {name: [count / round_[name]["wall_s"] for round_ in rounds] for name in ways},
        limit_tokens_s(run, batches), unit="tokens/s",
        notes=[f"the first step's losses differ by {difference:.1e} (relative)",
               f"the engine trains for {busy['ours']:.1%} of the time, "
               f"{busy['peer']:.1%} with one client"],
        **fields,
    )  # fmt: skip
    times = [[1e3 * s for of in r["ours"]["seconds"] for s in of[1:]] for r in rounds]
    halves = [share(of, 0.5) for of in times]
    yield make_row(
        "S4", f"{clients} clients' steps, from sent to stepped, p99", EVEN,
        {"ours": [share(of, 0.99) for of in times], "peer": halves}, share(halves, 0.5),
        lower_is_better=True, unit="ms", notes=["the limit is the median"], **fields,
    )  # fmt: skip


class SdkTrainer:
    """A training client of the real SDK."""

    def __init__(self, server):
        os.environ["TINKER_TELEMETRY"] = "0"
        import tinker

        self._types, self._server = tinker.types, server
        client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
        self._trainer = client.create_lora_training_client(
            NAME, rank=RANK, seed=SEED, train_unembed=False
        ).result()

    def step(self, rows):
        """A sample, of a step from what a program has to the loss that it gets."""
        types, sample = self._types, {}
        with beside(self._server, sample):
            data = [
                types.Datum(
                    model_input=types.ModelInput.from_ints(tokens),
                    loss_fn_inputs={"target_tokens": targets, "weights": weights},
                )
                for tokens, targets, weights in rows
            ]
            passed = self._trainer.forward_backward(data, "cross_entropy")
            stepped = self._trainer.optim_step(types.AdamParams(**ADAM))
            sample["loss"] = passed.result().metrics["loss:sum"]
            stepped.result()
        return sample


def s5(run):
    size, length = (2, 16) if is_quick(run) else (SIZE, LENGTH)
    batches = run.inputs.full_batches(run.attempts + 1, size, length)
    curves = {"ours": [], "peer": []}
    with ExitStack() as stack:
        peer = with_model(stack, run, "system_twinkle")
        peer.ask("start_as_service", rank=RANK, seed=SEED)
        ours = SdkTrainer(stack.enter_context(service(run)))

        def take(index):
            rows = scored(batches[index])
            round_ = {"ours": ours.step(rows)}
            round_["peer"] = peer.ask("step_as_service", rows=rows, adam=ADAM)
            for name, sample in round_.items():
                curves[name].append(sample["loss"])
            return round_

        rounds, noisy = warmed_rounds(run, "S5", take)
    difference = differences(curves["ours"], curves["peer"])
    times = {name: [1e3 * round_[name]["wall_s"] for round_ in rounds] for name in curves}
    added = share([a - b for a, b in zip(times["ours"], times["peer"], strict=True)], 0.5)
    yield make_row(
        "S5", f"a step through the SDK and the service, {size} x {length} tokens, rank {RANK}",
        IN_PROCESS, times, 1e3 * size * length / limit_tokens_s(run, batches[:1]),
        lower_is_better=True, unit="ms", noisy=noisy, valid=difference == 0,
        notes=[f"{len(curves['ours'])} losses differ by at most {difference:.1e} (relative)",
               f"added to a step, median: {added:.1f} ms"],
        losses=curves, foreign=foreign_of(rounds), **run.machine_fields(),
    )  # fmt: skip
