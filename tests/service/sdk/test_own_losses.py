"""Twinkle's own losses through the SDK: which tokens count, and numbers of a whole datum."""

import math

import numpy as np
import pytest
from service.clients import ADAM, datum, norm_of, steps, tinker, trainer, types

CHOSEN, REJECTED = [1, 93, 198, 204, 75, 282], [1, 93, 198, 49, 14]
REPLIES = [0, 0, 1, 1, 1], [0, 0, 1, 1]  # the reply's part of the targets


def pair(name=None, **more):
    """A chosen row and its rejected one; `name` tells what is a reply, `more` has one of each."""
    rows = []
    for i, tokens in enumerate((CHOSEN, REJECTED)):
        inputs = {key: values[i] for key, values in more.items()}
        if name:
            inputs[name] = np.array(REPLIES[i], np.float32)
        rows.append(datum(tokens, **(inputs or {"weights": [1.0] * (len(tokens) - 1)})))
    return rows


def told(client, data, loss, config=None):
    result = client.forward(data, loss, config).result()
    rows = [np.array(out["logprobs"].data, np.float64) for out in result.loss_fn_outputs]
    return result.metrics["loss:sum"], rows


def means(rows, of=REPLIES):
    return [row[np.array(marks) != 0].mean() for row, marks in zip(rows, of, strict=True)]


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


@pytest.mark.parametrize("name", ["weights", "mask"])
@pytest.mark.parametrize("loss", ["simpo", "SimPOLoss"])
def test_a_pairs_replies_are_what_their_weights_say(service, loss, name):
    client = trainer(service)
    value, rows = told(client, pair(name), loss)
    chosen, rejected = means(rows)
    assert value == pytest.approx(-log_sigmoid(2.5 * (chosen - rejected) - 0.5), rel=1e-5)
    whole, rows = told(client, pair(), loss)
    chosen, rejected = (row.mean() for row in rows)
    assert whole == pytest.approx(-log_sigmoid(2.5 * (chosen - rejected) - 0.5), rel=1e-5)
    assert abs(whole - value) > 1e-3, "the prompt would count"


def test_tokens_without_weight_give_no_gradient(service):
    whole, masked = trainer(service), trainer(service)
    whole.forward_backward(pair(), "orpo").result()
    masked.forward_backward(pair("mask"), "orpo").result()
    norms = [norm_of(client.optim_step(ADAM)) for client in (whole, masked)]
    assert all(norm > 0 for norm in norms) and norms[0] != pytest.approx(norms[1], rel=1e-3)


def test_a_number_of_a_whole_datum_has_the_shape_of_one(service):
    client = trainer(service)
    sums = [np.array([-3.0], np.float32), np.array([-4.0], np.float32)]
    value, rows = told(client, pair("weights", ref_sums=sums), "dpo", {"beta": 0.25})
    logprobs = [row[np.array(marks) != 0].sum() for row, marks in zip(rows, REPLIES, strict=True)]
    margin = 0.25 * ((logprobs[0] + 3) - (logprobs[1] + 4))
    assert value == pytest.approx(-log_sigmoid(margin), rel=1e-5)


def test_dpo_as_clients_of_modelscopes_twinkle_ask_for_it(service):
    """disable_lora of a forward, and importance_sampling of data with ref_logps."""
    client, untrained = trainer(service), trainer(service)
    steps(client, 3)
    data = pair("weights")
    _, of_base = told(untrained, data, "cross_entropy")  # its adapter adds zeros
    _, reference = told(client, data, "cross_entropy", {"disable_lora": True})
    _, own = told(client, data, "cross_entropy")
    assert all((a == b).all() for a, b in zip(reference, of_base, strict=True))
    assert not any((a == b).all() for a, b in zip(reference, own, strict=True))
    for row, logps in zip(data, reference, strict=True):
        row.loss_fn_inputs["ref_logps"] = types.TensorData.from_numpy(logps.astype(np.float32))
    options = {"dpo_beta": 0.25, "dpo_sft_weight": 0.5}
    result = client.forward_backward(data, "importance_sampling", options).result()
    chosen, rejected = (
        (a - b)[np.array(marks) != 0].sum()
        for a, b, marks in zip(own, reference, REPLIES, strict=True)
    )
    of_chosen = own[0][np.array(REPLIES[0]) != 0].mean()
    want = -log_sigmoid(0.25 * (chosen - rejected)) - 0.5 * of_chosen
    assert result.metrics["loss:sum"] == pytest.approx(want, rel=1e-5)
    assert norm_of(client.optim_step(ADAM)) > 0
    with pytest.raises(tinker.UnprocessableEntityError, match="'disable_lora'; cross_entropy"):
        client.forward_backward(pair(), "cross_entropy", {"disable_lora": True}).result()
    with pytest.raises(tinker.UnprocessableEntityError, match="disable_lora must be true or"):
        client.forward(pair(), "cross_entropy", {"disable_lora": 0.5}).result()


@pytest.mark.parametrize(
    ("loss", "inputs", "text"),
    [
        ("simpo", {"weights": [[1.0] * 5, [1.0] * 4], "mask": [np.ones(5, np.float32)] * 2},
         r"data\[0\] has weights and mask, which mean the same"),
        ("simpo", {"weights": [[0.5] * 5, [1.0] * 4]}, "a weight is 0.5, it must be 0 or 1"),
        ("simpo", {"weights": [[0.0] * 5, [1.0] * 4]}, "sequence 0 has no label"),
        ("dpo", {"ref_sums": [np.zeros(5, np.float32), np.zeros(4, np.float32)]},
         "has 5 values of 'ref_sums', of which DPOLoss reads one a sequence"),
        ("dpo", {"ref_logps": [np.zeros(1, np.float32), np.zeros(1, np.float32)]},
         "has 5 tokens but 1 values of 'ref_logps'"),
        ("dpo", {"ref_sums": [np.zeros(1, np.float32)] * 2,
                 "ref_logps": [np.zeros(5, np.float32), np.zeros(4, np.float32)]},
         "has both 'ref_logps' and 'ref_sums'"),
    ],
)  # fmt: skip
def test_what_a_loss_cannot_read_is_named(service, loss, inputs, text):
    client = trainer(service)
    with pytest.raises((tinker.UnprocessableEntityError, tinker.RequestFailedError), match=text):
        client.forward(pair(**inputs), loss).result()
