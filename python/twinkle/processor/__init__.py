"""InputProcessor: the last hand on a batch before the model."""

from twinkle.processor.input_processor import InputProcessor

__all__ = ["InputProcessor"]
