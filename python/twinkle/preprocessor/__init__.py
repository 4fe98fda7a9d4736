"""Preprocessors and filters: base classes to subclass, and the built-in ones of the C++ core.

The built-in classes are made when they are asked for, one for each preprocessor of the core.
"""

from twinkle.preprocessor import builtin
from twinkle.preprocessor.base import DataFilter, Filter, Preprocessor

__all__ = [
    "AlpacaProcessor", "CLEVRProcessor", "DataFilter", "Filter", "GSM8KProcessor",
    "OlympiadBenchProcessor", "Preprocessor", "SelfCognitionProcessor",
]  # fmt: skip


def __getattr__(name):
    return builtin.lookup(name, __name__)


def __dir__():
    return sorted({*__all__, *builtin.classes()})
