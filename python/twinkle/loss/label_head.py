"""Losses of a head of labels beside an adapter: of scores of replies, and of classes. The engine
computes them in its own pass, in float64."""

from twinkle.loss.base import by_hand
from twinkle.loss.engine import EngineLoss
from twinkle.loss.labels import scored


class _LabelLoss(EngineLoss):
    require_logps = False
    of_labels = True

    def _of_logits(self, logits, **given):
        """LossOutput of logits [B, n]."""
        import torch

        extras = self.engine_inputs({"input_ids": logits}, **given)
        return self._of_labels(torch.ones_like(logits, dtype=torch.bool), extras, logits)


class RewardLoss(_LabelLoss):
    """The loss of a reward model (Ouyang et al. 2022, arXiv 2203.02155, eq. 1), of pairs of a
    chosen and a rejected reply, adjacent in a batch: -log sigmoid(score(chosen) - score(rejected) -
    margin), the mean over pairs, and center_rewards_coefficient times the mean of (score(chosen) +
    score(rejected))^2 (Eisenstein et al. 2023, arXiv 2312.09244). A sequence's score is the logit
    of a head of one label, LoraConfig(task_type='SEQ_CLS', num_labels=1); of a
    TransformersValueModel the value at its last label.

    margin: a number for each pair (Touvron et al. 2023, arXiv 2307.09288, eq. 2); None: 0.
    InvalidError: a negative coefficient, another number of margins, an odd number of sequences."""

    require_values = True

    def _call(self, inputs, outputs, **margin):
        """LossOutput of logits [B, 1] or [B], which are the scores, or of labels and values
        [B, L]. InvalidError: of values also a sequence without labels."""
        scores = outputs.get("logits")
        if "values" in outputs or scores is None:
            inputs, outputs = by_hand(self, inputs, outputs)
            mask = scored(inputs, "loss: RewardLoss", "pairs")
            last = mask.shape[1] - 1 - mask.int().flip(1).argmax(1)  # argmax takes the first 1
            scores = outputs["values"].gather(1, last[:, None])
        return self._of_logits(scores.reshape(len(scores), -1), **margin)


class ClassificationLoss(_LabelLoss):
    """The loss of a classifier of sequences, the mean over them, of the logits of
    LoraConfig(task_type='SEQ_CLS', num_labels=n). problem_type, by transformers' names:
    'single_label_classification': -log softmax(logits)[label]; 'regression', of one label:
    (logit - label)^2.

    A call's argument is label, a number for each sequence, of classes an integer from 0.
    InvalidError: another problem_type, no label, a label of no class."""

    def _call(self, inputs, outputs, **label):
        """LossOutput of logits [B, n]."""
        return self._of_logits(outputs["logits"], **label)
