"""Losses of a head of labels beside an adapter: of scores of replies, and of classes. The engine
computes them in its own pass, in float64."""

import functools
import json

from twinkle import checks
from twinkle.core import core
from twinkle.loss.base import by_hand
from twinkle.loss.engine import TableLoss, function_of_arrays
from twinkle.loss.labels import of_pairs
from twinkle.loss.preference import Replies


class _LabelLoss(TableLoss):
    require_logps = False
    of_labels = True

    def _value(self, logits, extras):
        """The loss of logits [B, n], through which gradients flow back once."""
        run = functools.partial(
            core().run_loss,
            self.table_name,
            json.dumps(self.engine_options()),
            [logits.shape[1]] * len(logits),
            {name: values.numpy() for name, values in extras.items()},
        )
        value = function_of_arrays().apply(run, logits.double().flatten(), None)
        return {"loss": value, "num_tokens": 0}


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
    engine_name = "RewardLoss"
    row_arguments = ("margin",)

    def engine_inputs(self, inputs, margin=None):
        if margin is None:
            return {}
        pairs = len(inputs["input_ids"]) // 2
        return {"margin": of_pairs("margin", margin, pairs).repeat_interleave(2)}

    def __call__(self, inputs, outputs, margin=None):
        """LossOutput of logits [B, 1] or [B], which are the scores, or of labels and values
        [B, L]. InvalidError: of values also a sequence without labels."""
        scores = outputs.get("logits")
        if "values" in outputs or scores is None:
            inputs, outputs = by_hand(self, inputs, outputs)
            mask = Replies(inputs, "loss: RewardLoss").mask
            last = mask.shape[1] - 1 - mask.int().flip(1).argmax(1)  # argmax takes the first 1
            scores = outputs["values"].gather(1, last[:, None])
        return self._value(
            scores.reshape(len(scores), -1), self.engine_inputs({"input_ids": scores}, margin)
        )


class ClassificationLoss(_LabelLoss):
    """The loss of a classifier of sequences, the mean over them, of the logits of
    LoraConfig(task_type='SEQ_CLS', num_labels=n). problem_type, by transformers' names:
    'single_label_classification': -log softmax(logits)[label]; 'regression', of one label:
    (logit - label)^2.

    A call's argument is label, a number for each sequence, of classes an integer from 0.
    InvalidError: another problem_type, no label, a label of no class."""

    engine_name = "ClassificationLoss"
    row_arguments = ("label",)

    def engine_inputs(self, inputs, label=None):
        import torch

        count = len(inputs["input_ids"])
        try:
            values = torch.as_tensor(label, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            values = None
        if values is None or values.shape != (count,):
            must = f"one number for each of the {count} sequences, such as [0, 2, 1]"
            checks.refuse("loss: label", label, must)
        return {"label": values}

    def __call__(self, inputs, outputs, label=None):
        """LossOutput of logits [B, n]."""
        logits = outputs["logits"]
        return self._value(logits, self.engine_inputs({"input_ids": logits}, label))
