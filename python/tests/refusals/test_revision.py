"""A revision that would be ignored is refused."""

import pytest

from twinkle import InvalidError
from twinkle.model import TransformersModel
from twinkle.template import Template


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda d: TransformersModel(model_id=d, revision="v1"), "model: revision"),
        (lambda d: Template(d, revision="v1"), "template: revision"),
    ],
)
def test_a_revision_is_refused_by_name(make, name, tiny_llama_dir):
    with pytest.raises(InvalidError, match=f"{name} is 'v1', this version fetches the newest only"):
        make(tiny_llama_dir)


def test_no_revision_is_the_newest(tiny_llama_dir):
    TransformersModel(model_id=tiny_llama_dir, revision=None)
