"""The loss of a critic, which predicts what a policy's replies return."""

from twinkle import checks
from twinkle.errors import require
from twinkle.loss.base import Loss, by_hand
from twinkle.loss.labels import at_labels, scored


class PPOValueLoss(Loss):
    """PPO's clipped value loss: 1/2 max((V - R)^2, (clip(V, old - epsilon, old + epsilon) - R)^2),
    the mean over the batch's labels, in float64. V is the value, old the one before the update, R
    the return. (The reference implementation of Schulman et al. 2017; Huang et al. 2022, 37
    details of PPO, number 9.)

    epsilon: inf leaves nothing to clip. InvalidError: it is not above 0.
    """

    require_logps = False
    require_values = True
    whole_batch = True
    row_arguments = ("old_values", "returns", "advantages")

    def __init__(self, epsilon=0.2):
        self.epsilon = checks.number("loss: epsilon", epsilon, above=0, infinite=True)

    def __call__(self, inputs, outputs, old_values=None, returns=None, advantages=None):
        """LossOutput of values [B, L]; num_tokens is 0. old_values, returns: for each sequence one
        number, one for each of its labels, or one for each of its positions, such as 'values' of
        forward_only. advantages: the same; for PPOValueMetric, the loss does not read them.
        InvalidError: old_values or returns are missing, or do not fit."""
        import torch

        del advantages
        for name, given in (("old_values", old_values), ("returns", returns)):
            require(
                given is not None,
                f"loss: PPOValueLoss needs {name}: pass old_values=forward_only(...)['values'] of "
                "before the update, and returns, such as advantages + old_values",
            )
        inputs, outputs = by_hand(self, inputs, outputs)
        mask = scored(inputs, "loss: PPOValueLoss")
        values = outputs["values"].double()[mask]
        old = at_labels("old_values", old_values, inputs, mask)
        wanted = at_labels("returns", returns, inputs, mask)
        clipped = values.clamp(old - self.epsilon, old + self.epsilon)
        each = torch.maximum((values - wanted) ** 2, (clipped - wanted) ** 2) / 2
        return {"loss": each.sum() / max(len(each), 1), "num_tokens": 0}
