"""The metrics that every model has, as numbers."""

import time

from twinkle.metric.base import MeanMetric, Metric


class LossMetric(MeanMetric):
    """loss: mean per token since the last calculate (of mean losses: mean per call); num_tokens:
    labels that it is over; grad_norm: of the last step, before clipping."""

    needs_inputs = False
    reports_norm = True

    def accumulate(self, inputs, outputs, *, loss_tokens=None, grad_norm=None, **kwargs):
        """outputs: loss and num_tokens. loss_tokens: what the loss is a sum over; None, as where a
        script calls this: num_tokens, or the labels, with loss_reduction='sum', and 1 otherwise."""
        if outputs.get("loss") is None:
            return
        num_tokens = int(outputs.get("num_tokens") or 0)
        if loss_tokens is None and kwargs.get("loss_reduction") == "sum":
            loss_tokens = num_tokens or int((inputs["labels"] >= 0).sum())
        self._add("loss", float(outputs["loss"]), 1 if loss_tokens is None else loss_tokens)
        self._add("num_tokens", num_tokens, 0)
        self._grad_norm = self._grad_norm if grad_norm is None else grad_norm

    def calculate(self):
        out = super().calculate()
        if "loss" not in out:
            return out
        return {"loss": out.pop("loss"), "num_tokens": self._sums["num_tokens"][0], **out}


class TrainMetric(Metric):
    """lr (also as 'learning rate'): of the last step, or the first; of several, as a script may
    give them, 'learning rate(param group 1)' and so on; iters: optimizer steps so far;
    'total time elapse': seconds since the first batch; speed: steps per second and tokens/s:
    tokens per second, both since the last calculate."""

    needs_inputs = False

    def __init__(self, device_mesh=None, process_group=None):
        super().__init__(device_mesh, process_group)
        self._first = self._since = None
        self._lr, self._iters = None, 0
        self.reset()

    def accumulate(self, inputs, outputs, *, seq_tokens=0, started=None, lr=None, **kwargs):
        """As a model calls it; of a script's own call, which has no started, step divided by
        gradient_accumulation_steps are the iters."""
        del inputs, outputs
        if started is None:
            iters = (kwargs.get("step") or 0) // kwargs.get("gradient_accumulation_steps", 1)
            self._steps, self._iters = self._steps + iters - self._iters, iters
            started, self._lr = time.perf_counter(), lr
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
        rates = self._lr if isinstance(self._lr, (list, tuple)) else [self._lr]
        out = {"lr": rates[0], "learning rate": rates[0]}
        if len(rates) > 1:
            out = {f"learning rate(param group {i})": rate for i, rate in enumerate(rates, 1)}
        return {
            **out,
            "iters": self._iters,
            "total time elapse": now - self._first,
            "speed": self._steps / seconds,
            "tokens/s": self._tokens / seconds,
        }

    def reset(self):
        self._steps = self._tokens = 0
        if self._since is not None:
            self._since = time.perf_counter()
