"""What twinkle.loss exports, and how long it takes to import."""

import subprocess
import sys

import pytest

import twinkle
import twinkle.loss
from twinkle.loss import Loss, torch_loss_mapping

NAMES = """mse chunked_cross_entropy cross_entropy liger_fused_linear_cross_entropy gkd grpo ppo
gspo sapo cispo bnpo dr_grpo dpo simpo cpo orpo infonce""".split()


@pytest.mark.parametrize("name", NAMES)
def test_a_mapped_name_is_an_exported_loss(name):
    cls = torch_loss_mapping[name]
    assert issubclass(cls, Loss) and cls.__name__.lower() == f"{name.replace('_', '')}loss"
    assert cls.__name__ in twinkle.loss.__all__
    options = {"chunk_size": 64} if name == "chunked_cross_entropy" else {}
    assert type(twinkle.construct_class(cls.__name__, Loss, twinkle.loss, **options)) is cls


def test_losses_and_metrics_load_torch_where_they_compute():
    code = "import sys, twinkle.loss, twinkle.metric; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
