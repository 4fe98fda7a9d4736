"""Sampler: what every sampler can do, whatever runs it."""

from twinkle import template
from twinkle.errors import NotAvailableError
from twinkle.plugin import construct_class
from twinkle.remote.how import at_once


class Sampler:
    """Base of samplers: a subclass defines sample()."""

    template = None

    def sample(self, inputs, sampling_params=None, adapter_name="", adapter_path=None, **kwargs):
        """list[SampleResponse], one per input, in order."""
        raise NotImplementedError(f"sampler: {type(self).__name__} does not define sample")

    @at_once
    def set_template(self, template_cls, **kwargs):
        """A Template, a subclass, its name or a plugin id; kwargs are its constructor's."""
        if not isinstance(template_cls, template.Template):
            kwargs.setdefault("model_id", self.model_id)
        self.template = construct_class(template_cls, template.Template, template, **kwargs)

    @at_once
    def encode_trajectory(self, trajectory):
        """The prompt's feature, with the generation prompt."""
        return self.template.encode(trajectory, add_generation_prompt=True)

    @at_once
    def decode_response(self, tokens):
        """The text of token ids, without special tokens."""
        return self.template.decode(tokens, skip_special_tokens=True)

    @at_once
    def load_full_weights_from_path(self, path):
        """Samples from the weights at `path` from now on. Raises NotAvailableError here: a sampler
        that can defines it."""
        raise NotAvailableError(
            f"sampler: {type(self).__name__} keeps the weights that it has: make another one, "
            f"TorchSampler(model_id={path!r})"
        )


# Names of ModelScope's Twinkle, and what to do instead.
_INSTEAD = {
    "add_adapter_to_sampler": "pass model= to share a model's adapters, or adapter_path= to "
    "sample()",
    "apply_patch": "no sampler takes patches",
    "get_state_keys": "a sync compares the tensors' names itself, and names the first that differs",
    "receive_weights": "TorchSampler takes a model's weights",
}


def _missing(name, instead):
    def method(self, *args, **kwargs):
        what = f"sampler: {name} is not available in {type(self).__name__}"
        raise NotAvailableError(f"{what} of this version: {instead}")

    method.__name__, method.__doc__ = name, f"Raises NotAvailableError: {instead}."
    return at_once(method)


for _name, _instead in _INSTEAD.items():
    setattr(Sampler, _name, _missing(_name, _instead))
