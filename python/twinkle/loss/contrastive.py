"""Losses of embeddings [B, D]: which sequences belong together."""

from twinkle.core import core
from twinkle.errors import NotAvailableError
from twinkle.loss.engine import TableLoss


def anchors(inputs, reader):
    """Indices [G] of the sequences whose label is 1: each begins a group, anchor, positive,
    negatives. inputs: labels [B], or [B, L] with one for each sequence at its first position.
    reader: who reads them, such as 'loss: InfonceLoss'.
    InvalidError: other labels, a first sequence that is no anchor, an anchor without a positive.
    """
    return core().loss_extras("InfonceLoss", "", inputs, {}, reader)["anchors"]


class InfonceLoss(TableLoss):
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
    more_arguments = ("process_group",)

    def _set(self, process_group, **options):
        super()._set(**options)
        if process_group is not None:
            raise NotAvailableError(
                "loss: process_group gathers embeddings of several processes, this version has "
                "one: leave it out"
            )

    def _call(self, inputs, outputs):
        """LossOutput of labels, 1 for an anchor and 0 for what follows it, and embeddings [B, D].
        InvalidError: as anchors; a group without negatives where hard_negatives is set."""
        embeddings = outputs["embeddings"]
        return self._computed(core().run_vector_loss, self.engine_inputs(inputs), embeddings)
