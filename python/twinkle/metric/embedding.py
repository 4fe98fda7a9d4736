"""Metrics of embedding losses."""

from twinkle.loss.contrastive import anchors
from twinkle.metric.base import Metric


class EmbeddingMetric(Metric):
    """Since the last calculate: pos_sim, pos_sim_min, pos_sim_max: the cosine similarities of
    anchors to their positives; neg_sim: the mean of those to the positives of other groups of the
    same call; loss: the mean of the calls'; grad_norm: of the last step, before clipping. Groups
    are as InfonceLoss has them; calls without embeddings count nothing."""

    reads = "embeddings"

    def __init__(self, device_mesh=None, process_group=None):
        super().__init__(device_mesh, process_group)
        self._grad_norm = None
        self.reset()

    def check(self, inputs, **kwargs):
        """InvalidError: as twinkle.loss.contrastive.anchors."""
        del kwargs
        anchors(inputs, "metric: EmbeddingMetric")

    def accumulate(self, inputs, outputs, **kwargs):
        """inputs: labels, as InfonceLoss has them; outputs: embeddings [B, D], and the loss.
        InvalidError: as twinkle.loss.contrastive.anchors."""
        import torch

        del kwargs
        if outputs.get("embeddings") is None:
            return
        first = anchors(inputs, "metric: EmbeddingMetric")
        embeddings = torch.nn.functional.normalize(outputs["embeddings"].double(), dim=-1)
        similarities = embeddings[first] @ embeddings[first + 1].T
        other = ~torch.eye(len(first), dtype=torch.bool)
        self._positive += similarities.diagonal().tolist()
        self._negative_sum += float(similarities[other].sum())
        self._negatives += int(other.sum())
        if outputs.get("loss") is not None:
            self._losses.append(float(outputs["loss"]))

    def on_step(self, *, grad_norm=None, **kwargs):
        del kwargs
        self._grad_norm = grad_norm

    def calculate(self):
        out = {}
        if self._positive:
            out["pos_sim"] = sum(self._positive) / len(self._positive)
            out["pos_sim_min"], out["pos_sim_max"] = min(self._positive), max(self._positive)
        if self._negatives:
            out["neg_sim"] = self._negative_sum / self._negatives
        if self._losses:
            out["loss"] = sum(self._losses) / len(self._losses)
        if self._grad_norm is not None:
            out["grad_norm"] = self._grad_norm
        return out

    def reset(self):
        self._positive, self._losses = [], []
        self._negative_sum, self._negatives = 0.0, 0
