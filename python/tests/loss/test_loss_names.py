"""The names that twinkle.loss exports, and how long it takes to import."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import twinkle
import twinkle.loss
from twinkle.core import core
from twinkle.errors import InvalidError
from twinkle.loss import FunctionLoss, GRPOLoss, Loss, torch_loss_mapping
from twinkle.loss.base import check_usable, row_arguments

NAMES = """mse chunked_cross_entropy cross_entropy liger_fused_linear_cross_entropy gkd grpo ppo
gspo sapo cispo bnpo dr_grpo dpo simpo cpo orpo kto opsd infonce""".split()


@pytest.mark.parametrize("name", NAMES)
def test_a_mapped_name_is_an_exported_loss(name):
    cls = torch_loss_mapping[name]
    assert issubclass(cls, Loss) and cls.__name__.lower() == f"{name.replace('_', '')}loss"
    assert cls.__name__ in twinkle.loss.__all__
    options = {"chunk_size": 64} if name == "chunked_cross_entropy" else {}
    assert type(twinkle.construct_class(cls.__name__, Loss, twinkle.loss, **options)) is cls


def test_the_table_of_losses_is_the_engines(engine_built):
    """tools/loss_options.py writes it anew."""
    table = Path(twinkle.loss.__file__).with_name("options.json").read_text()
    assert table == core().loss_table()


def test_losses_and_metrics_load_torch_where_they_compute():
    code = "import sys, twinkle.loss, twinkle.metric; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize("name", [*NAMES, "ppo_value", "reward"])
def test_a_loss_says_which_of_its_arguments_have_an_entry_for_each_row(name):
    cls = torch_loss_mapping[name]
    loss = cls(chunk_size=64) if name == "chunked_cross_entropy" else cls()
    numbers = {"topk", "num_items_in_batch"}
    taken = set(inspect.signature(cls.__call__).parameters) - {"self", "inputs", "outputs"}
    assert set(row_arguments(loss)) == taken - numbers


def test_row_arguments_are_those_of_the_class_that_has_the_call():
    class Faster(GRPOLoss):
        epsilon = 0.5

    class Weighted(GRPOLoss):
        def __call__(self, inputs, outputs, coef=None, **kwargs):
            return super().__call__(inputs, outputs, **kwargs)

    class Named(Weighted):
        row_arguments = ("advantages",)

    assert row_arguments(Faster()) == GRPOLoss.row_arguments
    assert row_arguments(Weighted()) is None
    assert row_arguments(Named()) == ("advantages",)
    own = Weighted()
    own.row_arguments = ()
    assert row_arguments(own) == ()


@pytest.mark.parametrize("names", ["coef", ("coef", 1), 3])
def test_row_arguments_that_are_no_names_are_refused(names):
    def function(inputs, outputs, coef=None):
        return coef

    function.row_arguments = names
    with pytest.raises(InvalidError, match=r"loss: row_arguments of FunctionLoss is .* a tuple of"):
        check_usable(FunctionLoss(function))


def test_an_argument_that_a_loss_has_not_is_named():
    with pytest.raises(InvalidError, match=r"SimPOLoss: unknown argument 'gama'.*mean gamma"):
        twinkle.loss.SimPOLoss(gama=0.5)
    with pytest.raises(InvalidError, match=r"GRPOLoss: unknown argument 'advantage'.*advantages"):
        twinkle.loss.GRPOLoss()({}, {}, advantage=1)
