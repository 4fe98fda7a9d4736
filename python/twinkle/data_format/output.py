"""Inputs and outputs of a model. All are plain dicts."""

from typing import Any, TypedDict


class InputFeature(TypedDict, total=False):
    """One encoded sequence of L tokens. The fields of the trajectory that it came from are kept."""

    input_ids: Any  # [L] integers
    attention_mask: Any  # [L] 0 or 1
    position_ids: Any  # [L]
    labels: (
        Any  # [L], already shifted: labels[t] is the token after t, -100 where nothing is trained
    )
    completion_mask: Any  # [L] 0 or 1
    loss_scale: Any  # [L] weights of the labels in the loss; absent: 1
    length: int
    routed_experts: Any  # [L, layers with experts, k] where tokens go; -1: where routers say


class ModelOutput(TypedDict, total=False):
    """A model's output for a batch of B sequences, the longest of L positions.

    TransformersModel gives loss, logps and num_tokens, and what else it is asked for.
    """

    logits: Any  # [batch, longest, vocabulary] float32, with return_logits=True
    loss: float  # as the loss defines it: a sum over tokens for CrossEntropyLoss(reduction='sum')
    logps: Any  # [batch, longest] float32, log p(label), 0 where the label is -100
    entropies: Any  # the same shape
    values: Any
    num_tokens: float  # labels that are not -100
    temperature: float  # that logps belong to, of forward and forward_only
    scored_by: str  # the model and adapter that scored them; absent: the base model did
    iters: int  # steps that these had learnt then
    aux_loss: float  # for routed experts, without its coefficient, with router_aux_loss_coef
    embeddings: Any  # [batch, width] float32 of L2 norm 1, with task='embedding'
    routed_experts: Any  # [batch, longest, layers with experts, k] int64, with RECORD, -1: nothing


_PADS = {"routed_experts": -1}  # where routers choose


def pad_of(name):
    """The value of an output at positions that its sequence lacks."""
    return _PADS.get(name, 0)


class LossOutput(TypedDict, total=False):
    """The result of a loss, where a scalar tensor alone does not say what it sums over."""

    loss: Any  # a scalar tensor
    num_tokens: Any  # the step's divisor of the gradient; 0: the loss is a mean already
