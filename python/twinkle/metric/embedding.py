"""Metrics of embedding losses."""

from twinkle.loss.contrastive import anchors
from twinkle.metric.base import MeanMetric


class EmbeddingMetric(MeanMetric):
    """Since the last calculate: pos_sim, pos_sim_min, pos_sim_max: the cosine similarities of
    anchors to their positives; neg_sim: the mean of those to the positives of other groups of the
    same call; loss: the mean of the calls'; grad_norm: of the last step, before clipping. Groups
    are as InfonceLoss has them; calls without embeddings count nothing."""

    reads = "embeddings"
    reports_norm = True

    def check(self, inputs, **kwargs):
        """InvalidError: as twinkle.loss.contrastive.anchors."""
        del kwargs
        anchors(inputs, "metric: EmbeddingMetric")

    def accumulate(self, inputs, outputs, **kwargs):
        """inputs: labels, as InfonceLoss has them; outputs: embeddings [B, D], or in their place
        logits [B, D] or, of which the first is taken, [B, L, D]; and the loss. InvalidError: as
        twinkle.loss.contrastive.anchors."""
        import torch

        del kwargs
        embeddings = outputs.get("embeddings")
        if embeddings is None and "logps" not in outputs:
            embeddings = outputs.get("logits")
        if embeddings is None:
            return
        embeddings = embeddings[:, 0] if embeddings.ndim == 3 else embeddings
        first = anchors(inputs, "metric: EmbeddingMetric")
        embeddings = torch.nn.functional.normalize(embeddings.double(), dim=-1)
        similarities = embeddings[first] @ embeddings[first + 1].T
        own, other = similarities.diagonal(), ~torch.eye(len(first), dtype=torch.bool)
        self._add("pos_sim", own, None)
        self._add("neg_sim", similarities[other], None)
        known = [*self._range, *own.tolist()]
        self._range = min(known), max(known)
        if outputs.get("loss") is not None:
            self._add("loss", float(outputs["loss"]), 1)

    def calculate(self):
        out = super().calculate()
        if "pos_sim" in out:
            out["pos_sim_min"], out["pos_sim_max"] = self._range
        return out

    def reset(self):
        super().reset()
        self._range = ()
