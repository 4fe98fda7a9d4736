"""Sampler: what every sampler can do, whatever runs it."""

import twinkle.template
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
        if not isinstance(template_cls, twinkle.template.Template):
            kwargs.setdefault("model_id", self.model_id)
        self.template = construct_class(
            template_cls, twinkle.template.Template, twinkle.template, **kwargs
        )

    @at_once
    def encode_trajectory(self, trajectory):
        """The prompt's feature, with the generation prompt."""
        return self.template.encode(trajectory, add_generation_prompt=True)

    @at_once
    def decode_response(self, tokens):
        """The text of token ids, without special tokens."""
        return self.template.decode(tokens, skip_special_tokens=True)

    @at_once
    def add_adapter_to_sampler(self, adapter_name, config):
        """Raises NotAvailableError, which names what to do instead."""
        raise NotAvailableError(
            "sampler: add_adapter_to_sampler is not available in this version; pass model= to "
            "share a model's adapters, or adapter_path= to sample()"
        )

    @at_once
    def get_state_keys(self):
        """Raises NotAvailableError: a sync compares the tensors' names itself."""
        raise NotAvailableError(
            "sampler: get_state_keys is not available in this version; a sync names the first "
            "tensor that differs"
        )

    @at_once
    def receive_weights(self, *args, **kwargs):
        """Takes a model's weights. Raises NotAvailableError here: TorchSampler can."""
        raise NotAvailableError(
            f"sampler: receive_weights is not available in {type(self).__name__}; TorchSampler "
            "takes a model's weights"
        )

    @at_once
    def load_full_weights_from_path(self, path):
        """Samples from the weights at `path` from now on. Raises NotAvailableError here: a sampler
        that can defines it."""
        raise NotAvailableError(
            f"sampler: {type(self).__name__} keeps the weights that it has: make another one, "
            f"TorchSampler(model_id={path!r})"
        )

    @at_once
    def apply_patch(self, patch_cls, **kwargs):
        """Raises NotAvailableError: no sampler takes patches yet."""
        raise NotAvailableError("sampler: apply_patch is not available in this version")
