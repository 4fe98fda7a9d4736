"""Metrics of reinforcement learning losses."""

import math

import numpy as np

from twinkle import checks
from twinkle.errors import require
from twinkle.loss.labels import scored, spread
from twinkle.metric.base import MeanMetric


class GRPOMetric(MeanMetric):
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
        super().__init__(device_mesh, process_group)
        self.temperature = checks.number("metric: temperature", temperature, above=0)
        self.epsilon = checks.number("metric: epsilon", epsilon, least=0)
        epsilon_high = epsilon if epsilon_high is None else epsilon_high
        self.epsilon_high = checks.number("metric: epsilon_high", epsilon_high, least=0)
        self.top_k_kl = checks.integer("metric: top_k_kl", top_k_kl, least=0)

    def check(self, inputs, *, old_logps=None, advantages=None, **kwargs):
        """InvalidError: a loss_scale of neither 0 nor 1, and as twinkle.loss.labels of what is
        given."""
        del kwargs
        self._read(inputs, old_logps, advantages)

    def accumulate(self, inputs, outputs, *, old_logps=None, advantages=None, **kwargs):
        """inputs: labels [B, L]; outputs: logps and, if they are there, entropies [B, L];
        old_logps and advantages as the loss got them. Or inputs is a list of rows or micro-batches,
        and so are the outputs. InvalidError: these have another number of entries."""
        del kwargs
        if isinstance(inputs, list):
            self._accumulate_each(inputs, outputs, old_logps, advantages)
            return
        if not outputs or outputs.get("logps") is None:  # embeddings have none
            return
        mask, old, advantages = self._read(inputs, old_logps, advantages)
        self._sequences += len(mask)
        if not mask.any():
            return
        new = outputs["logps"].double()
        self._add("mean_new_logp", self.temperature * new[mask], None)
        if outputs.get("entropies") is not None:
            self._add("entropy", outputs["entropies"].double()[mask], None)
        if old is None:
            return
        self._add("mean_old_logp", self.temperature * old[mask], None)
        self._compare(inputs, new, old, mask)
        if advantages is not None:
            low, high = self._clipped((new - old).masked_fill(~mask, 0.0), advantages, mask)
            self._add("clip_ratio_low", low, None)
            self._add("clip_ratio_high", high, None)

    def _accumulate_each(self, inputs, outputs, old_logps, advantages):
        import torch

        given = {n: outputs[n] for n in ("logps", "entropies") if outputs.get(n) is not None}
        for name, values in given.items():
            require(
                len(values) == len(inputs),
                f"metric: {len(inputs)} inputs and {len(values)} {name}: give one of them for each",
            )
        begin = 0
        for i, row in enumerate(inputs):
            fields = [n for n in ("labels", "attention_mask", "loss_scale") if n in row]
            batch = {n: torch.atleast_2d(torch.from_numpy(np.array(row[n]))) for n in fields}
            count, length = batch["labels"].shape
            part = slice(begin, begin + count)
            self.accumulate(
                batch,
                {n: torch.atleast_2d(values[i])[:, :length] for n, values in given.items()},
                old_logps=None if old_logps is None else old_logps[part],
                advantages=None if advantages is None else advantages[part],
            )
            begin += count

    def _read(self, inputs, old_logps, advantages):
        """(mask, old log-probabilities or None, advantages or None), each [B, L]."""
        mask = scored(inputs, f"metric: {type(self).__name__}")
        given = {"old_logps": old_logps, "advantages": advantages}
        if old_logps is None or not mask.any():
            return mask, None, None
        return mask, *(
            None if values is None else spread(name, values, inputs, mask)
            for name, values in given.items()
        )

    def _compare(self, inputs, new, old, mask):
        d = (new - old)[mask]
        kl = d.exp() - d - 1
        self._add("logp_diff_mean", d, None)
        self._add("approx_kl", kl, None)
        for name, values in (("token_kl_max", kl), ("token_ratio_max", d.exp())):
            self._greatest[name] = max(self._greatest.get(name, 0.0), float(values.max()))
        where = mask.nonzero()
        for i in kl.topk(min(self.top_k_kl, int((kl > 0).sum()))).indices.tolist():
            row, pos = where[i].tolist()
            token = inputs["labels"][row, pos]
            scores = {"kl": kl[i], "ratio": d[i].exp(), "logp_new": new[row, pos]}
            scores = {name: float(x) for name, x in {**scores, "logp_old": old[row, pos]}.items()}
            place = {"gsi": self._sequences - len(mask) + row, "pos": pos, "token_id": int(token)}
            self._records.append({**place, **scores})

    def _clipped(self, d, advantages, mask):
        """(below, above) the clip, of each item that is clipped on its own. d, advantages and mask:
        [B, L], 0 where no label counts."""
        return self._beyond(d[mask].exp(), advantages[mask])

    def _beyond(self, ratio, advantages):
        low = (ratio < 1 - self.epsilon) & (advantages < 0)
        return low, (ratio > 1 + self.epsilon_high) & (advantages > 0)

    def calculate(self):
        means = super().calculate()
        if "mean_new_logp" in means:
            means["policy_confidence"] = math.exp(means["mean_new_logp"])
        if "clip_ratio_low" in means:
            means["clip_ratio"] = means["clip_ratio_low"] + means["clip_ratio_high"]
        out = {f"train/{name}": value for name, value in {**means, **self._greatest}.items()}
        return {**out, "_high_kl_records": list(self._records)} if self._records else out

    def reset(self):
        super().reset()
        self._greatest, self._records, self._sequences = {}, [], 0


class PPOMetric(GRPOMetric):
    """GRPOMetric, for PPOLoss, which clips the same way."""


class GSPOMetric(GRPOMetric):
    """GRPOMetric, for GSPOLoss: the shares are of sequences, by the exponential of their mean d and
    the mean of their advantages."""

    def _clipped(self, d, advantages, mask):
        counts = mask.sum(-1)
        some = counts > 0
        d, advantages = (x.sum(-1)[some] / counts[some] for x in (d, advantages))
        return self._beyond(d.exp(), advantages)


class CISPOMetric(GRPOMetric):
    """GRPOMetric, for CISPOLoss: train/clip_ratio_high is of labels whatever the sign of A, and
    train/clip_ratio_low is 0, since that loss has no lower limit."""

    def _clipped(self, d, advantages, mask):
        del advantages
        high = d[mask].exp() > 1 + self.epsilon_high
        return high & False, high
