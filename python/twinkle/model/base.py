"""TwinkleModel: what every model can do, whatever runs it."""

_METHODS = (
    "forward", "forward_only", "calculate_loss", "backward", "forward_backward", "clip_grad_norm",
    "step", "zero_grad", "lr_step", "clip_grad_and_step", "set_loss", "set_optimizer",
    "set_lr_scheduler", "set_template", "set_processor", "add_metric", "calculate_metric",
    "add_adapter_to_model", "save", "load", "resume_from_checkpoint", "get_state_dict",
    "get_train_configs", "apply_patch", "upload_to_hub",
)  # fmt: skip


class TwinkleModel:
    """Base of models. TransformersModel documents each method."""


def _missing(name):
    def method(self, *args, **kwargs):
        raise NotImplementedError(f"model: {type(self).__name__} does not define {name}")

    method.__name__ = name
    method.__doc__ = f"See TransformersModel.{name}."
    return method


for _name in _METHODS:
    setattr(TwinkleModel, _name, _missing(_name))
