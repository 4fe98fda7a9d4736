"""A server that tests send hostile requests to, while a quiet tenant trains next to them."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor, wait

from service.message import ONES, message, train
from service.wire import Wire

TOKENS = [1, 93, 198, 204, 75, 282, 49, 14, 42, 30, 2]


def quiet_work(server, more):
    """Trains while more(steps so far): its numbers, and its adapter's sha256."""
    from tinker import types

    adam = types.AdamParams(learning_rate=1e-3)
    service = server.client("tml-quiet")
    client = service.create_lora_training_client("tiny", rank=4, seed=3).result()
    row = types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * 10},
    )
    said = []
    while more(len(said)):
        passed = client.forward_backward([row], "cross_entropy")
        stepped = client.optim_step(adam).result()
        said.append((passed.result().metrics["loss:sum"], stepped.metrics))
    path = client.save_state("end").result().path.removeprefix("tinker://")
    file = server.state / "checkpoints" / path / "adapter_model.safetensors"
    return said, hashlib.sha256(file.read_bytes()).hexdigest()


class Attacked:
    """A server, and the quiet tenant's numbers when it is told to end."""

    def __init__(self, start, model, state):
        self.server = start(model, state, "--log-level", "off")
        self.ending = threading.Event()
        self.pool = ThreadPoolExecutor(1)
        self.quiet = self.pool.submit(quiet_work, self.server, self.more)

    def more(self, steps):
        """True if the quiet tenant continues: to the end, and two steps at least."""
        return not self.ending.wait(0.25) or steps < 2

    def wire(self, **more):
        return Wire(self.server.url, **more)

    def end(self, alone):
        """After the tests: the server starts again on what was journalled of them, and the quiet
        tenant, who trained meanwhile, has the numbers that it has on a server of its own."""
        try:
            self.server.kill()
            self.server.start_again()
            wire = self.wire()
            run = wire.run()
            assert isinstance(wire.result(train(wire, message(run, 1, weights=ONES)).json()), bytes)
            assert "metrics" in wire.result(wire.step(run, 2).json())
            self.ending.set()
            said, adapter = self.quiet.result(timeout=60)
            server = alone()
            try:
                assert quiet_work(server, lambda steps: steps < len(said)) == (said, adapter)
            finally:
                assert server.stop() == 0
            assert self.server.stop() == 0
        finally:
            self.ending.set()
            wait([self.quiet], timeout=30)
            self.server.process.kill()
            self.pool.shutdown(wait=False)
