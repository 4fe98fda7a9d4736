"""Users' inputs as the engine's sequences, and its vectors as padded tensors."""

from twinkle import checks
from twinkle.core import core
from twinkle.errors import InvalidError, require
from twinkle.logger import get_logger


def as_list(inputs):
    """A list of dicts from one dict, a list of dicts, or sample responses. InvalidError: None or
    another thing, an item with neither input_ids nor messages, a sample response without
    new_input_feature, a misspelt field, as _core.refuse_misspelt finds them."""
    require(inputs is not None, "model: inputs is missing, pass inputs=batch")
    if isinstance(inputs, dict) or hasattr(inputs, "sequences"):
        inputs = [inputs]
    if not hasattr(inputs, "__iter__") or isinstance(inputs, (str, bytes, type)):
        checks.refuse("model: inputs", inputs, "a dict, a list of dicts, or sample responses")
    out = []
    for item in inputs:
        for sequence in getattr(item, "sequences", ()):  # a SampleResponse's
            require(
                sequence.new_input_feature is not None,
                "model: a sample response has no new_input_feature, set the sampler's template",
            )
            out.append(sequence.new_input_feature)
        if not hasattr(item, "sequences"):
            out.append(getattr(item, "new_input_feature", item))
    for index, item in enumerate(out):
        is_row = isinstance(item, dict)
        known = is_row and ("input_ids" in item or "messages" in item)
        if not known and not (is_row and core().is_read_as_chat(item)):
            row = item[0] if isinstance(item, list) and item else item  # a list of messages
            has = core().in_place_of_messages(row) if isinstance(row, dict) else ""
            raise InvalidError(
                f"model: inputs[{index}] must be an InputFeature with input_ids or a Trajectory "
                f"with messages{has}"
            )
        if "input_ids" in item:  # the template makes other rows' fields
            core().refuse_misspelt(f"model: inputs[{index}]", item)
    return out


def batch_of(features, model_info, template, processor=None, marks=False):
    """A Batch of features and of Trajectories, for a model. template: a function that gives what
    encodes these. InvalidError: as Batch; routed_experts of another model."""
    if any("input_ids" not in feature for feature in features):
        features = template().batch_encode(features)
    batch = Batch(processor(features) if processor else features, marks)
    batch.check_routes(model_info["num_routed_layers"], model_info["num_experts_per_tok"])
    return batch


class Batch:
    """Features as the engine takes them: `sequences`, `lengths` (positions as given), num_tokens
    and the other parts of the compiled Batch. Packed features are as many sequences as they have
    samples. marks: one label may stand for a whole sequence. InvalidError: no input_ids, a field
    that is not one sequence of numbers or not as long as they are, an attention_mask of others than
    0 and 1, position_ids of a sample that do not count up from 0, or that begin again behind a
    label other than -100."""

    def __init__(self, features, marks=False):
        self._core = core().Batch(list(features), marks)

    def __len__(self):
        return len(self._core)

    def __getattr__(self, name):
        return getattr(self._core, name)

    def warn_of_unlabelled(self):
        """Warns, once in this process, of an input with labels of -100 alone, which teaches
        nothing: its role names are most often wrong."""
        once, found = "model: unlabelled", self._core.unlabelled()
        if found is None or get_logger().has_logged(once):
            return
        index, roles = found
        has = f": the roles of its messages are {roles}, only 'assistant' is trained"
        get_logger().warning_once(
            f"model: inputs[{index}] has no label to learn from{has if roles else ''}; further "
            "ones are not reported",
            hash_id=once,
        )

    def split(self, size):
        """Batches of at most `size` sequences, in order."""
        if size is None or size >= len(self):
            return [self]
        return [Batch(self.features[i : i + size]) for i in range(0, len(self), size)]
