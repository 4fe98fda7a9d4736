"""Metrics of reinforcement learning losses."""

import numpy as np

from twinkle.errors import require
from twinkle.metric.labels import LabelMetric


class GRPOMetric(LabelMetric):
    """Means over labels since the last calculate; lp is log p, in nats, d is lp - old.

    train/mean_new_logp: lp; train/policy_confidence: the exponential of that mean; train/entropy:
    the entropies, where the loss asks for them (entropy_coef above 0). Where the loss was given
    old_logps: train/mean_old_logp; train/logp_diff_mean: d; train/approx_kl: exp(d) - d - 1
    (Schulman's k3); train/token_kl_max and train/token_ratio_max: the greatest of these, and of
    exp(d). Given advantages, too: train/clip_ratio_low and train/clip_ratio_high, the shares of
    labels with exp(d) < 1 - epsilon and A < 0, and exp(d) > 1 + epsilon_high and A > 0;
    train/clip_ratio: their sum. With top_k_kl, _high_kl_records: of each batch the labels with that
    many greatest positive k3, dicts of gsi (the sequence since the last calculate), pos, token_id,
    kl, ratio, logp_new and logp_old.

    temperature: mean_new_logp and mean_old_logp are multiplied by it, which undoes that of the
    logits up to their normalisation; d is as the loss sees it. epsilon_high: epsilon where it is
    None. InvalidError: a negative epsilon or top_k_kl, a temperature not above 0.
    """

    reads = "logps"

    def __init__(
        self,
        device_mesh=None,
        process_group=None,
        temperature=1.0,
        epsilon=0.2,
        epsilon_high=None,
        top_k_kl=0,
    ):
        options = {"temperature": temperature, "epsilon": epsilon, "epsilon_high": epsilon_high}
        super().__init__(device_mesh, process_group, **options, top_k_kl=top_k_kl)

    def accumulate(self, inputs, outputs, **kwargs):
        """inputs: labels [B, L]; outputs: logps and, if they are there, entropies [B, L]; kwargs:
        old_logps and advantages as the loss got them. Or inputs is a list of rows or micro-batches,
        and so are the outputs. InvalidError: these have another number of entries; as check."""
        if not isinstance(inputs, list):
            return super().accumulate(inputs, outputs, **kwargs)
        import torch

        engine, begin = self._engine, 0
        scores = {n: outputs[n] for n in engine.outputs if outputs.get(n) is not None}
        given = {n: kwargs[n] for n in engine.arguments if kwargs.get(n) is not None}
        for name, each in scores.items():
            text = f"metric: {len(inputs)} inputs and {len(each)} {name}: give one of them for each"
            require(len(each) == len(inputs), text)
        for i, row in enumerate(inputs):
            names = [n for n in ("labels", "attention_mask", "loss_scale") if n in row]
            batch = {n: torch.from_numpy(np.array(row[n], ndmin=2)) for n in names}
            count, length = batch["labels"].shape
            own = {n: torch.atleast_2d(each[i])[:, :length] for n, each in scores.items()}
            of_rows = {n: each[begin : begin + count] for n, each in given.items()}
            super().accumulate(batch, own, **of_rows)
            begin += count


class PPOMetric(GRPOMetric):
    """GRPOMetric, for PPOLoss, which clips the same way."""


class GSPOMetric(GRPOMetric):
    """GRPOMetric, for GSPOLoss: the shares are of sequences, by the exponential of their mean d and
    the mean of their advantages."""


class CISPOMetric(GRPOMetric):
    """GRPOMetric, for CISPOLoss: train/clip_ratio_high is of labels whatever the sign of A, and
    train/clip_ratio_low is 0, since that loss has no lower limit."""
