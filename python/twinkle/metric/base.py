"""The base class of metrics."""

from twinkle.engine.ranks import ranks_of
from twinkle.errors import refuse_unknown
from twinkle.infra import current_run


class Metric:
    """Collects per call, then yields a dict of numbers.

    accumulate(inputs, outputs, **kwargs) is called after every forward_backward (training) or
    calculate_loss (evaluation): `inputs` as losses get them, `outputs` a ModelOutput; kwargs: lr,
    step (micro-batches so far), gradient_accumulation_steps, grad_norm (of the last step or None),
    loss_tokens (what `loss` is a sum over; 1: it is a mean), seq_tokens (tokens of the batch),
    started (time.perf_counter() before the call), and what the loss was called with, such as
    advantages.
    check(inputs, **kwargs) is called before that, and before the engine is asked: what it refuses
    leaves gradients, counters and metrics as they are. A metric that reads an output which not
    every model and task gives names it in `reads`, and is then checked only where it is given.
    calculate() returns the dict of what was collected; reset() forgets it. InvalidError: a keyword
    argument that the constructor does not take.

    Of a model that several processes train, accumulate sees the batch of all of them in each, so
    that calculate gives the numbers of one process. What a script accumulates itself is its
    process's own: calculate then gathers, with gather_results, and every process must call it.
    device_mesh: of these processes; None: that of initialize. process_group: not used.
    """

    needs_inputs = True  # False saves the padding of inputs
    # "logps", "embeddings", "values" or "logits" of labels; None: check is called whatever the
    # outputs will have
    reads = None
    # Set by the model that it is added to: accumulate is given what all ranks have
    sees_all = False
    # True: outputs has predictions [B, L] int64, the likeliest next tokens (-1 where the label is
    # ignored), for which every batch goes through the model once more
    needs_predictions = False

    def __init__(self, device_mesh=None, process_group=None, **kwargs):
        self.device_mesh = device_mesh
        self.process_group = process_group
        refuse_unknown(f"metric: {type(self).__name__}", kwargs)

    def check(self, inputs, **kwargs):
        """InvalidError: inputs, or what the loss is called with, that accumulate would refuse. Here
        nothing."""

    def accumulate(self, inputs, outputs, **kwargs):
        """Takes one call's inputs and outputs; the class says what these hold."""
        raise NotImplementedError(f"{type(self).__name__} must define accumulate")

    def calculate(self):
        """{name: number} of what was collected since the last reset."""
        raise NotImplementedError(f"{type(self).__name__} must define calculate")

    def reset(self):
        """Forgets what was collected."""
        raise NotImplementedError(f"{type(self).__name__} must define reset")

    def on_step(self, **kwargs):
        """After an optimizer step: grad_norm (or None), lr (that it used), iters (steps so far)."""

    def gather_results(self, local_results):
        """The results of all data ranks, a list each, one after the other; of a metric that a model
        accumulates, and in one process, those that are given. InvalidError: ranks have come here
        from different calls; InternalError: one has gone."""
        if self.sees_all:
            return list(local_results)
        mesh = current_run().mesh if self.device_mesh is None else self.device_mesh
        of_ranks = ranks_of(mesh).gather(f"{type(self).__name__}'s results", list(local_results))
        return [result for results in of_ranks for result in results]
