"""The built-in preprocessors, under the name that scripts import them from."""

from twinkle.preprocessor import builtin


def __getattr__(name):
    return builtin.lookup(name, __name__)


def __dir__():
    return sorted(builtin.classes())
