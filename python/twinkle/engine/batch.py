"""Users' inputs as the engine's sequences, and its vectors as padded tensors: _core.Batch."""

from twinkle.core import core
from twinkle.logger import get_logger


def as_list(inputs, what="model: inputs"):
    """A list of dicts from one dict, a list of dicts, or sample responses. what: they are, for
    errors. InvalidError: None or another thing, an item with neither input_ids nor messages, a
    sample response without new_input_feature, a misspelt field, as _core.refuse_misspelt finds
    them."""
    return core().as_list(inputs, what)


def batch_of(features, model_info, template, processor=None, marks=False):
    """A _core.Batch of features and of Trajectories, for a model. template: a function that gives
    what encodes these. marks: one label may stand for a whole sequence. InvalidError: a field that
    is none of a sequence; routed_experts of another model."""
    if any("input_ids" not in feature for feature in features):
        features = template().batch_encode(features)
    batch = core().Batch(list(processor(features) if processor else features), marks)
    batch.check_routes(model_info["num_routed_layers"], model_info["num_experts_per_tok"])
    return batch


def warn_of_unlabelled(batch):
    """Warns, once in this process, of an input with labels of -100 alone, which teaches nothing."""
    if text := batch.unlabelled():
        get_logger().warning_once(text, hash_id="model: unlabelled")
