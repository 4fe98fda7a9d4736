"""MultiLoraTransformersModel: several adapters on one base model, each called by its name."""

from twinkle import checks
from twinkle.errors import require
from twinkle.model.transformers_model import TransformersModel


class MultiLoraTransformersModel(TransformersModel):
    """As TransformersModel; adapter_name is mandatory in every method. Every adapter is a tenant of
    one engine: threads may drive different adapters at the same time; their operations share
    batches, and each adapter gets the same bits as alone.

    max_loras: adapters at a time. max_r: their largest rank; each costs its own rank only.
    max_length: tokens of one sequence. lora_config and target_modules describe the slots that
    ModelScope's Twinkle allocates in advance; there are none here, so they change nothing.
    InvalidError: max_loras, max_r or max_length is no integer of at least 1; in a method: no
    adapter_name, one adapter more than max_loras, a rank above max_r, or a sequence of more than
    max_length tokens; and as
    TransformersModel.
    """

    _without_adapters = "none"

    def __init__(
        self,
        model_cls=None,
        model_id=None,
        config=None,
        lora_config=None,
        max_loras=5,
        max_r=32,
        max_length=8192,
        target_modules="all-linear",
        **kwargs,
    ):
        del lora_config, target_modules  # they have no effect
        for name, value in (("max_loras", max_loras), ("max_r", max_r), ("max_length", max_length)):
            checks.integer(f"model: {name}", value, least=1)
        super().__init__(model_cls, model_id, config, **kwargs)
        self.max_loras, self.max_r, self.max_length = max_loras, max_r, max_length

    def _group(self, adapter_name=None):
        require(bool(adapter_name), f"model: {type(self).__name__} needs adapter_name")
        return super()._group(adapter_name)

    def _new_group(self, adapter_name, config_or_dir, gradient_accumulation_steps):
        group = super()._new_group(adapter_name, config_or_dir, gradient_accumulation_steps)
        rank = group.config.r
        require(rank <= self.max_r, f"model: the rank is {rank}, max_r is {self.max_r}")
        return group

    def _add(self, group):
        adapters = [name for name in self._groups if name]
        require(
            len(adapters) < self.max_loras,
            f"model: {len(adapters)} adapters exist ({', '.join(adapters)}), max_loras is "
            f"{self.max_loras}: remove one with remove_adapter",
        )
        super()._add(group)

    def _batch(self, group, inputs, task):
        batch = super()._batch(group, inputs, task)
        for i, sequence in enumerate(batch.sequences):
            length = len(sequence["input_ids"])
            require(
                length <= self.max_length,
                f"model: sequence {i} of the inputs has {length} tokens, max_length is "
                f"{self.max_length}: cut it, or make the model with a larger max_length",
            )
        return batch
