"""Wishes of a forward's router_replay_action, by the names of ModelScope's Twinkle."""

from enum import Enum

from twinkle import checks
from twinkle.data_format.output import pad_of
from twinkle.errors import require


class RouterReplayAction(Enum):
    """RECORD: the output also has routed_experts, where tokens went. REPLAY_FORWARD: tokens go
    where routed_experts of the inputs say, which they do without it, too."""

    RECORD = 1
    REPLAY_FORWARD = 2


def records(method, action):
    """True: the output has routed_experts. action: None, a RouterReplayAction, or anything of
    such a name. InvalidError: another one, or one that the method does not have."""
    name = getattr(action, "name", action)
    if name is not None and str(name) not in RouterReplayAction.__members__:
        must = "None, RouterReplayAction.RECORD or RouterReplayAction.REPLAY_FORWARD"
        checks.refuse("model: router_replay_action", action, must)
    record = name == "RECORD"
    require(
        not record or method != "forward_backward",
        "model: router_replay_action is RECORD, but forward_backward returns no routed_experts: "
        "forward and forward_only do",
    )
    return record


def padded_routes(batch, vectors, model_info):
    """[B, longest, layers, k] int64 tensor of the engine's vectors, padded as pad_of says."""
    shape = -1, model_info["num_routed_layers"], model_info["num_experts_per_tok"]
    return batch.wide([ids.reshape(shape) for ids in vectors], pad_of("routed_experts"))
