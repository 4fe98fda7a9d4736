"""The metrics that every model has, as numbers."""

import time

from twinkle.metric.base import Metric


class LossMetric(Metric):
    """loss: mean per token since the last calculate (of mean losses: mean per call); num_tokens:
    labels that it is over; grad_norm: of the last step, before clipping."""

    needs_inputs = False

    def __init__(self, device_mesh=None, process_group=None):
        super().__init__(device_mesh, process_group)
        self._grad_norm = None
        self.reset()

    def accumulate(self, inputs, outputs, *, loss_tokens=1, **kwargs):
        del inputs, kwargs
        if outputs.get("loss") is None:
            return
        self._loss += outputs["loss"]
        self._divisor += loss_tokens
        self._num_tokens += outputs.get("num_tokens", 0)

    def on_step(self, *, grad_norm=None, **kwargs):
        del kwargs
        self._grad_norm = grad_norm

    def calculate(self):
        out = {}
        if self._divisor:
            out = {"loss": self._loss / self._divisor, "num_tokens": self._num_tokens}
        if self._grad_norm is not None:
            out["grad_norm"] = self._grad_norm
        return out

    def reset(self):
        self._loss, self._divisor, self._num_tokens = 0.0, 0.0, 0


class TrainMetric(Metric):
    """lr (also as 'learning rate'): of the last step, or the first; iters: optimizer steps so far;
    'total time elapse': seconds since the first batch; speed: steps per second and tokens/s:
    tokens per second, both since the last calculate."""

    needs_inputs = False

    def __init__(self, device_mesh=None, process_group=None):
        super().__init__(device_mesh, process_group)
        self._first = self._since = None
        self._lr, self._iters = None, 0
        self.reset()

    def accumulate(self, inputs, outputs, *, seq_tokens=0, started=None, lr=None, **kwargs):
        del inputs, outputs, kwargs
        started = time.perf_counter() if started is None else started
        self._first = started if self._first is None else self._first
        self._since = started if self._since is None else self._since
        self._tokens += seq_tokens
        if self._iters == 0:
            self._lr = lr

    def on_step(self, *, lr=None, iters=0, **kwargs):
        del kwargs
        self._lr, self._iters = lr, iters
        self._steps += 1

    def calculate(self):
        if self._first is None:
            return {}
        now = time.perf_counter()
        seconds = max(now - self._since, 1e-9)
        return {
            "lr": self._lr,
            "learning rate": self._lr,
            "iters": self._iters,
            "total time elapse": now - self._first,
            "speed": self._steps / seconds,
            "tokens/s": self._tokens / seconds,
        }

    def reset(self):
        self._steps = self._tokens = 0
        if self._since is not None:
            self._since = time.perf_counter()
