"""Rows of a data set as the tinker SDK's data, and back."""

import numpy as np

from twinkle import checks
from twinkle.errors import InvalidError, NotAvailableError, require

__all__ = ["datum_to_input_feature", "input_feature_to_datum"]
_PICTURES = ("pixel_values", "image_grid_thw")


def input_feature_to_datum(input_feature):
    """A types.Datum of a row with input_ids [L] and, if it has them, labels [L], which are shifted
    already: target_tokens are the labels, weights are 1 where a label is, else 0. InvalidError: no
    input_ids; labels of another length; pictures, which no model of this version reads.
    NotAvailableError: the package tinker is not installed."""
    try:
        from tinker import types
    except ImportError:
        raise NotAvailableError(
            "server: a Datum needs the package tinker: pip install tinker"
        ) from None
    pictures = [name for name in _PICTURES if input_feature.get(name) is not None]
    require(not pictures, f"server: a row has {', '.join(pictures)}, but models read text alone")
    require("input_ids" in input_feature, "server: a row has no input_ids: encode() makes them")
    tokens = checks.ids("server: input_ids", input_feature["input_ids"])
    inputs, labels = {}, input_feature.get("labels")
    if labels is not None:
        labels = np.array(checks.ids("server: labels", labels), np.int64)
        if len(labels) != len(tokens):
            raise InvalidError(
                f"server: a row has {len(tokens)} input_ids and {len(labels)} labels, it must have "
                "as many of both"
            )
        is_label = labels != -100
        inputs = {
            "target_tokens": types.TensorData.from_numpy(np.where(is_label, labels, 0)),
            "weights": types.TensorData.from_numpy(is_label.astype(np.float32)),
        }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def datum_to_input_feature(datum, template=None):
    """The row of a types.Datum, or the rows of a list of them: input_ids [L] and labels [L],
    which are -100 where the weight is 0, or, where there are no weights, the target is 0.
    template is not read. InvalidError: a datum without target_tokens."""
    if isinstance(datum, list):
        return [datum_to_input_feature(each, template) for each in datum]
    inputs = datum.loss_fn_inputs
    require("target_tokens" in inputs, "server: a datum has no target_tokens in loss_fn_inputs")
    targets = inputs["target_tokens"].to_numpy()
    trained = inputs["weights"].to_numpy() if "weights" in inputs else targets
    return {
        "input_ids": datum.model_input.to_ints(),
        "labels": np.where(trained != 0, targets, -100).tolist(),
    }
