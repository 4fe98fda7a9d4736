"""S1 by the real SDK, and S6: a burst of its requests beside other clients' heartbeats."""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows import make_row
from service.client import KEY, Client, Server, program
from service.questions import in_turn, is_quick, row, s1, servers, share
from verdict import IDLE

ADDED_MS, HEARTBEAT_MS = 0.5, 50.0  # goals
BURST = 208, 512  # forward_backwards of 3.3 MB, samples


def trainer(url, ends):
    """The SDK's, and the data of a small forward_backward. Its session ends with `ends`."""
    os.environ["TINKER_TELEMETRY"] = "0"
    import tinker
    from tinker import types

    tokens = types.ModelInput.from_ints([1, 2, 3])
    inputs = {"target_tokens": [2, 3, 4], "weights": [0.0, 1.0, 1.0]}
    data = [types.Datum(model_input=tokens, loss_fn_inputs=inputs)]
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    ends.callback(close, service)
    return service.create_lora_training_client("null", rank=8).result(), data


def close(service):
    """Ends a session. The SDK's heartbeat (0.38) may lose a cancel that comes while it is sent, and
    its close() then never ends."""
    with contextlib.suppress(TimeoutError):
        service.close("success").result(timeout=10)


def both_s1(run):
    yield from s1(run)
    yield from s1_sdk(run)


def s1_sdk(run):
    count = 20 if is_quick(run) else 300
    with servers() as at, contextlib.ExitStack() as ends:
        trainers = {name: trainer(server.url, ends) for name, server in at.items()}

        def p50_ms(name):
            client, data = trainers[name]
            times = []
            for _ in range(count):
                start = time.perf_counter()
                client.forward_backward(data, "cross_entropy").result()
                times.append(1e3 * (time.perf_counter() - start))
            return statistics.median(times)

        times = in_turn(run, "S1", p50_ms)
    least = 0.01  # less is none
    added = [max(least, a - b) for a, b in zip(times["ours"], times["peer"], strict=True)]
    what = "what the service adds to the SDK's own submit to result, p50"
    yield row(run, "S1", what, {"ours": added, "peer": times["peer"]}, ADDED_MS, "ms")


def heartbeats_ms(client, session, goes_on):
    """Times of heartbeats, one after the other, 2 ms apart, as long as goes_on()."""
    out = []
    while goes_on():
        start = time.perf_counter()
        client.post("session_heartbeat", session_id=session)
        out.append(1e3 * (time.perf_counter() - start))
        time.sleep(0.002)
    return out


def server_heartbeats_ms(file, begin, end):
    """null_service's times of the requests that it answered between these two: from head to
    response."""
    lines = [line.split() for line in file.read_text().splitlines()]
    return [
        int(took) / 1e3
        for path, at, took in lines
        if path.endswith("/session_heartbeat") and begin <= int(at) / 1e6 <= end
    ]


def s6(run):
    """One burst: it takes long, and its samples are its heartbeats' p99, as their client sees them
    and as the server does."""
    num_passes, num_samples = (4, 16) if is_quick(run) else BURST
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        with (
            Server(program("null_service"), f"{folder}/state", "process", times) as server,
            Client(server.port) as client,
        ):
            session = client.post("create_session")["session_id"]
            begin = time.monotonic()  # the clock of `times`
            end = begin + (0.5 if is_quick(run) else 5)
            idle = heartbeats_ms(client, session, lambda: time.monotonic() < end)
            between = time.monotonic()
            script = Path(__file__).with_name("burst.py")
            command = [sys.executable, script, server.url, KEY, str(num_passes), str(num_samples)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as burst:
                busy = heartbeats_ms(client, session, lambda: burst.poll() is None)
                said = burst.stdout.read().strip()
            over = time.monotonic()
            run.progress("S6")(None)
        if burst.returncode != 0 or said != str(num_passes + num_samples):
            raise RuntimeError(f"bench: the burst ended with {burst.returncode} and said {said!r}")
        own_idle = server_heartbeats_ms(times, begin, between)
        own_busy = server_heartbeats_ms(times, between, over)
    what = f"a heartbeat beside {num_passes} forward_backwards and {num_samples} samples, p99"
    notes = ["the limit is the goal", f"load average {os.getloadavg()[0]:.1f}"]
    for told, ours, peer in ((what, busy, idle), (f"{what}, server time", own_busy, own_idle)):
        yield make_row(
            "S6", told, IDLE, {"ours": [share(ours, 0.99)], "peer": [share(peer, 0.99)]},
            HEARTBEAT_MS, lower_is_better=True, unit="ms", noisy=False, valid=True, notes=notes,
            **run.machine_fields(),
        )  # fmt: skip
