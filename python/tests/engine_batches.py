"""A batch and an adapter's config, for tests of twinkle.engine."""

from features import drawn

from twinkle import LoraConfig

LORA = LoraConfig(r=4, target_modules="all-linear")
BATCH = drawn([5, 17, 9])
