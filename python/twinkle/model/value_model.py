"""TransformersValueModel: a critic, which values every state of a text."""

import twinkle.metric
from twinkle.errors import InvalidError, require
from twinkle.loss import PPOValueLoss
from twinkle.metric import Metric
from twinkle.model.transformers_model import TransformersModel
from twinkle.plugin import construct_class


class TransformersValueModel(TransformersModel):
    """As TransformersModel, but for its head: in place of the vocabulary's, one row and a bias,
    V = w h + b of the final hidden state h, which begin at zero; tied embeddings stay as they are.
    All weights are trained; there are no adapters, and nothing can be sampled.

    forward and forward_only return 'values' [batch, longest] float32 in place of logps: at
    position t of the state from which labels[t] is predicted, 0 where that label is ignored. Labels
    say where values are wanted, and nothing else. With mixed_precision='bf16' values are rounded to
    bfloat16, as logits are. A loss has require_values = True, here PPOValueLoss() by default, and
    learns through outputs['values'].
    model_id: also a token or sequence classifier of these families with one label, whose head is
    taken; save writes a token classifier, for transformers' AutoModelForTokenClassification.
    InvalidError: a classifier with another number of labels, and as TransformersModel; in a
    method: task, return_logits or a temperature, which are of a vocabulary.
    """

    _value_head = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._groups[""].loss = PPOValueLoss()

    def _batch(self, group, inputs, task):
        embedding = "embedding" if task.gives == "embeddings" else ""
        given = {"task": embedding, "return_logits": task.logits, "temperature": task.temperature}
        for name, plain in (("task", ""), ("return_logits", False), ("temperature", 1.0)):
            require(
                given[name] == plain,
                f"model: {name} is {given[name]!r}, but TransformersValueModel gives values alone, "
                "without a vocabulary; leave it out",
            )
        return super()._batch(group, inputs, task)

    def _accumulate(self, together, *args):
        require(
            together.whole.num_labels > 0,
            "model: the batch has no label to learn from: check the template and max_length",
        )
        return super()._accumulate(together, *args)

    def add_metric(self, metric_cls, is_training=None, adapter_name=None, **kwargs):
        """As TransformersModel.add_metric. InvalidError: a metric that compares with the likeliest
        tokens, such as Accuracy, and as there."""
        metric = construct_class(metric_cls, Metric, twinkle.metric, **kwargs)
        require(
            not metric.needs_predictions,
            f"model: {type(metric).__name__} compares with the likeliest tokens, which "
            "TransformersValueModel does not have; PPOValueMetric is for it",
        )
        super().add_metric(metric_cls, is_training, adapter_name, **kwargs)

    def add_adapter_to_model(self, adapter_name, config_or_dir, *args, **kwargs):
        """Raises InvalidError: all weights are trained."""
        del config_or_dir, args, kwargs
        raise InvalidError(
            f"model: add_adapter_to_model({adapter_name!r}): TransformersValueModel trains all "
            "weights and has no adapters, since the head is new; leave the call out"
        )

    def tenant_for_sampling(self, adapter_name=None):
        """Raises InvalidError: there is no vocabulary to sample from."""
        del adapter_name
        raise InvalidError(
            "model: a TransformersValueModel gives values, not tokens; sample from a "
            "TransformersModel"
        )
