"""Losses of embeddings [B, D]: which sequences belong together."""

from twinkle import checks
from twinkle.errors import NotAvailableError, require
from twinkle.loss.base import Loss


def anchors(inputs, reader):
    """Indices [G] of the sequences whose label is 1: each begins a group, anchor, positive,
    negatives. inputs: labels [B], or [B, L] with one for each sequence at its first position.
    reader: who reads them, such as 'loss: InfonceLoss'.
    InvalidError: other labels, a first sequence that is no anchor, an anchor without a positive.
    """
    labels = inputs["labels"]
    marks = labels.reshape(len(labels), -1)
    require(
        bool(((marks[:, 0] == 0) | (marks[:, 0] == 1)).all() and (marks[:, 1:] == -100).all()),
        f"{reader} needs one label for each sequence, [1] for an anchor, which begins a "
        "group, and [0] for its positive and negatives",
    )
    found = marks[:, 0].nonzero().flatten()
    require(
        len(found) > 0 and int(found[0]) == 0,
        f"{reader}: the first sequence has the label 0, but a group begins with an anchor, "
        "of label 1",
    )
    ends = [*found.tolist()[1:], len(marks)]
    for begin, end in zip(found.tolist(), ends, strict=True):
        require(
            end - begin > 1,
            f"{reader}: inputs[{begin}] is an anchor without a positive after it",
        )
    return found


class InfonceLoss(Loss):
    """InfoNCE (van den Oord et al. 2018, arXiv 1807.03748, eq. 4): -log softmax of the anchor's
    similarity to its positive, among those to all documents (positives and negatives), divided by
    temperature; the mean over groups. For forward_backward(task='embedding').

    use_batch: documents of all groups count, else those of the anchor's own. hard_negatives: how
    many each group has; more are cut off, fewer repeated in turn. mask_fake_negative: documents
    whose similarity exceeds the positive's by more than fake_neg_margin are left out. include_qq:
    other anchors count as documents, too; include_dd: and the positive's similarities to other
    documents, unmasked (Zhang et al. 2025, arXiv 2506.05176). InvalidError: a temperature or margin
    not above 0, hard_negatives below 1, include_qq or include_dd without use_batch.
    NotAvailableError: a process_group.
    """

    require_logps = False
    whole_batch = True
    row_arguments = ()

    def __init__(
        self,
        temperature=0.1,
        use_batch=True,
        hard_negatives=None,
        mask_fake_negative=False,
        fake_neg_margin=0.1,
        include_qq=False,
        include_dd=False,
        process_group=None,
    ):
        self.temperature = checks.number("loss: temperature", temperature, above=0)
        self.use_batch = checks.flag("loss: use_batch", use_batch)
        self.hard_negatives = checks.integer(
            "loss: hard_negatives", hard_negatives, least=1, none=True
        )
        self.mask_fake_negative = checks.flag("loss: mask_fake_negative", mask_fake_negative)
        self.fake_neg_margin = checks.number("loss: fake_neg_margin", fake_neg_margin, above=0)
        self.include_qq = checks.flag("loss: include_qq", include_qq)
        self.include_dd = checks.flag("loss: include_dd", include_dd)
        require(
            self.use_batch or not (self.include_qq or self.include_dd),
            "loss: include_qq and include_dd compare groups with each other, they need "
            "use_batch=True",
        )
        if process_group is not None:
            raise NotAvailableError(
                "loss: process_group gathers embeddings of several processes, this version has "
                "one: leave it out"
            )

    def __call__(self, inputs, outputs):
        """LossOutput of labels, 1 for an anchor and 0 for what follows it, and embeddings [B, D].
        InvalidError: as anchors; a group without negatives where hard_negatives is set."""
        import torch

        embeddings = outputs["embeddings"].double()
        first = anchors(inputs, "loss: InfonceLoss").tolist()
        groups = [
            self._documents(begin, end)
            for begin, end in zip(first, [*first[1:], len(embeddings)], strict=True)
        ]
        owner = torch.tensor([g for g, documents in enumerate(groups) for _ in documents])
        docs = embeddings[[i for documents in groups for i in documents]]
        queries = embeddings[first]
        rows = torch.arange(len(groups))
        own = torch.searchsorted(owner, rows)  # each group's positive among docs
        scores = queries @ docs.T
        limit = scores[rows, own].detach()[:, None] + self.fake_neg_margin
        if not self.use_batch:
            scores = scores.masked_fill(owner != rows[:, None], -torch.inf)
        parts = [self._masked(scores, limit)]
        if self.include_qq:
            others = (queries @ queries.T).masked_fill(rows == rows[:, None], -torch.inf)
            parts.append(self._masked(others, limit))
        if self.include_dd:
            itself = torch.arange(len(docs)) == own[:, None]
            parts.append((docs[own] @ docs.T).masked_fill(itself, -torch.inf))
        loss = torch.nn.functional.cross_entropy(torch.cat(parts, 1) / self.temperature, own)
        return {"loss": loss, "num_tokens": 0}

    def _documents(self, begin, end):
        """Indices of a group's positive and its negatives."""
        positive, *negatives = range(begin + 1, end)
        if self.hard_negatives is None:
            return [positive, *negatives]
        require(
            negatives,
            f"loss: hard_negatives is {self.hard_negatives}, but the group of inputs[{begin}] has "
            "no negative to repeat",
        )
        return [positive, *(negatives[i % len(negatives)] for i in range(self.hard_negatives))]

    def _masked(self, scores, limit):
        import torch

        return scores.masked_fill(scores > limit, -torch.inf) if self.mask_fake_negative else scores
