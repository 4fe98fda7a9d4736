"""The real `tinker` SDK against a server of its own, on a tiny model."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from service.clients import ADAM, TOKENS, datum, loss_of, norm_of, steps, tinker, trainer, types


def test_it_overfits_and_the_custom_loss_is_the_built_in_one(service):
    client = trainer(service)
    losses = steps(client, 8)
    assert losses[-1] < losses[0] - 1

    def custom(data, logprobs):
        return -sum(row.sum() for row in logprobs), {"rows": float(len(logprobs))}

    metrics = client.forward_backward_custom([datum()], custom).result().metrics
    assert metrics["rows"] == 1
    for name in ("loss:sum", "surrogate_loss:sum"):
        assert metrics[name] == pytest.approx(loss_of(client), rel=1e-6)
    split = trainer(service)
    whole = trainer(service)
    split.forward_backward_custom([datum()], custom).result()
    whole.forward_backward([datum()], "cross_entropy").result()
    norms = [norm_of(client.optim_step(ADAM)) for client in (split, whole)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def clipped(lp, q):
    return min(max(math.exp(lp - q), 0.8), 1.2)


SAMPLED = {  # a row's log p, the sampler's and the advantage
    "importance_sampling": lambda lp, q, a: -math.exp(lp - q) * a,
    "ppo": lambda lp, q, a: -min(math.exp(lp - q) * a, clipped(lp, q) * a),
    "cispo": lambda lp, q, a: -clipped(lp, q) * lp * a,
    "dro": lambda lp, q, a: -(lp * a - 0.5 * 0.05 * (lp - q) ** 2),
}


@pytest.mark.parametrize("loss", SAMPLED)
def test_losses_of_sampled_rows_are_their_formulas_forwards_and_with_gradients(service, loss):
    client = trainer(service)
    sampler, advantages = [-4.0 - 0.3 * t for t in range(10)], [(-0.5) ** t for t in range(10)]
    sampled = datum(logprobs=sampler, advantages=advantages)
    config = {"beta": 0.05} if loss == "dro" else None
    told = client.forward([sampled], loss, config).result()
    logprobs = told.loss_fn_outputs[0]["logprobs"].data
    expected = sum(map(SAMPLED[loss], logprobs, sampler, advantages))
    assert told.metrics["loss:sum"] == pytest.approx(expected, rel=1e-5)
    learned = client.forward_backward([sampled], loss, config).result()
    assert learned.metrics["loss:sum"] == told.metrics["loss:sum"]
    assert learned.loss_fn_outputs[0]["logprobs"].data == logprobs


ADVANTAGES = [(-0.5) ** t for t in range(10)]
ROWS = [TOKENS, [5, *TOKENS[1:]]]  # for two prompts


def sampled_near(client, gaps, **inputs):
    """A datum of each row, whose sampler's log-probabilities are so far below the run's."""
    told = client.forward([datum(row) for row in ROWS], "cross_entropy").result()
    trained = [out["logprobs"].data for out in told.loss_fn_outputs]
    return trained, [
        datum(row, logprobs=[lp - gap for lp in logprobs], advantages=ADVANTAGES, **inputs)
        for row, logprobs, gap in zip(ROWS, trained, gaps, strict=True)
    ]


def test_gspo_is_its_formula_of_one_ratio_for_a_datum_and_so_are_its_gradients(service):
    client, reference = trainer(service), trainer(service)
    mask, gaps, low, high = [0.0] * 3 + [1.0] * 7, (-0.3, 0.02), 0.9, 1.1
    _, data = sampled_near(client, gaps, sequence_ratio_mask=mask)
    config = {"clip_low_threshold": low, "clip_high_threshold": high}
    passed = client.forward_backward(data, "gspo", config).result()
    expected, weights = 0.0, []  # those of a cross_entropy of the same gradients
    for gap in gaps:  # the mean of log p - logprobs over the mask
        s = math.exp(gap)
        bounded = min(max(s, low), high)
        expected += -sum(min(s * a, bounded * a) for a in ADVANTAGES)
        weights.append([0.0 if bounded * a < s * a else s * a for a in ADVANTAGES])
    assert passed.metrics["loss:sum"] == pytest.approx(expected, rel=1e-5)
    assert 0 < sum(w == 0 for w in weights[0]) < 10 and 0 not in weights[1]
    same = [datum(row, weights=w) for row, w in zip(ROWS, weights, strict=True)]
    reference.forward_backward(same, "cross_entropy").result()
    norms = [norm_of(c.optim_step(ADAM)) for c in (client, reference)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    nothing = datum(logprobs=ADVANTAGES, advantages=ADVANTAGES, sequence_ratio_mask=[0.0] * 10)
    with pytest.raises(tinker.RequestFailedError, match="sequence_ratio_mask of sequence 0 is 0"):
        client.forward([nothing], "gspo").result()


@pytest.mark.parametrize("loss", ["ppo", "cispo", "gspo"])
def test_every_token_may_have_bounds_of_its_own(service, loss):
    client = trainer(service)
    mask = {"sequence_ratio_mask": [1.0] * 10} if loss == "gspo" else {}
    low, high = [0.9] * 5 + [0.5] * 5, [1.1] * 5 + [2.0] * 5
    bounds = {"clip_low_threshold": low, "clip_high_threshold": high}
    trained, data = sampled_near(client, (0.3, -0.3), **mask, **bounds)
    expected = 0.0
    for logprobs, gap in zip(trained, (0.3, -0.3), strict=True):
        r = math.exp(gap)
        for t, a in enumerate(ADVANTAGES):
            bounded = min(max(r, low[t]), high[t])
            expected -= bounded * logprobs[t] * a if loss == "cispo" else min(r * a, bounded * a)
    told = client.forward(data, loss).result().metrics["loss:sum"]
    assert told == pytest.approx(expected, rel=1e-5)


TARGETS = [[TOKENS[t + 1], (7 * t) % 131, *[0] * 6] for t in range(10)]
WEIGHTS = [[0.5, -0.25 * (t % 3), *[0.0] * 6] for t in range(10)]


def several(make=types.TensorData.from_torch):
    """A datum of eight targets a token, most of them of no weight."""
    targets, weights = make(torch.tensor(TARGETS)), make(torch.tensor(WEIGHTS))
    model_input = types.ModelInput.from_ints(TOKENS[:-1])
    inputs = {"target_tokens": targets, "weights": weights}
    return types.Datum(model_input=model_input, loss_fn_inputs=inputs)


def column(k):
    """Their k-th ones alone."""
    data = datum(weights=[w[k] for w in WEIGHTS])
    targets = types.TensorData(data=[t[k] for t in TARGETS], dtype="int64")
    data.loss_fn_inputs["target_tokens"] = targets
    return data


def test_several_targets_of_a_token_learn_as_each_does_alone(service):
    together, apart = trainer(service), trainer(service)
    sparse = several(types.TensorData.from_torch_sparse)
    assert sparse.loss_fn_inputs["weights"].sparse_crow_indices, "or the test would show nothing"
    result = together.forward_backward([sparse, datum()], "cross_entropy").result()
    logprobs = result.loss_fn_outputs[0]["logprobs"].to_torch()
    assert logprobs.shape == (10, 8)
    assert result.loss_fn_outputs[1]["logprobs"].to_torch().shape == (10,)
    columns = [apart.forward_backward([column(k)], "cross_entropy").result() for k in range(3)]
    plain = apart.forward_backward([datum()], "cross_entropy").result()
    for k, of_column in enumerate(columns):
        assert of_column.loss_fn_outputs[0]["logprobs"].data == logprobs[:, k].tolist()
    expected = sum(c.metrics["loss:sum"] for c in [*columns, plain])
    assert result.metrics["loss:sum"] == pytest.approx(expected, rel=1e-6)
    norms = [norm_of(client.optim_step(ADAM)) for client in (together, apart)]
    assert norms[0] == pytest.approx(norms[1], rel=2e-3)  # in bfloat16, rounded apart or together
    dense = trainer(service).forward([several()], "cross_entropy").result()
    assert torch.equal(dense.loss_fn_outputs[0]["logprobs"].to_torch(), logprobs)


def test_a_custom_loss_that_is_no_number_is_refused_by_name_and_no_step_is_made(service):
    client = trainer(service)

    def custom(data, logprobs):
        return logprobs[0].sum() * math.nan, {}

    with pytest.raises(tinker.UnprocessableEntityError, match=r"weights holds -?nan at 0"):
        client.forward_backward_custom([datum()], custom).result()
    with pytest.raises(RuntimeError, match="previous request failed"):  # this very client
        client.optim_step(ADAM).result()


def test_a_custom_loss_of_several_targets_learns_as_the_built_in_one(service):
    weights = torch.tensor(WEIGHTS)

    def custom(data, logprobs):
        return -(weights * logprobs[0]).sum(), {}

    split, whole = trainer(service), trainer(service)
    split.forward_backward_custom([several()], custom).result()
    whole.forward_backward([several()], "cross_entropy").result()
    norms = [norm_of(client.optim_step(ADAM)) for client in (split, whole)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_targets_that_do_not_fit_are_named(service):
    odd = several()
    odd.loss_fn_inputs["weights"] = types.TensorData.from_torch(torch.ones(10))
    short = datum(weights=[1.0] * 9)
    for data, loss, text in (
        (odd, "cross_entropy", r"weights has the shape \[10\], it must be \[10, 8\]"),
        (short, "cross_entropy", r"weights has the shape \[9\], it must be \[10\]"),
        (several(), "dro", "8 targets for each token, dro takes one; CrossEntropyLoss takes sev"),
    ):
        with pytest.raises(tinker.UnprocessableEntityError, match=text):
            trainer(service).forward([data], loss).result()


def test_a_state_goes_on_as_its_run_would_have(service):
    client = trainer(service)
    steps(client, 2)
    path = client.save_state("before").result().path
    resumed = service.create_training_client_from_state_with_optimizer(path)
    assert loss_of(resumed) == loss_of(client)
    assert steps(resumed, 2) == steps(client, 2)


def test_samplers_agree_with_the_trainer(service):
    client = trainer(service)
    steps(client, 2)
    prompt = types.ModelInput.from_ints(TOKENS)
    trained = client.forward([datum()], "cross_entropy").result()
    expected = trained.loss_fn_outputs[0]["logprobs"].data
    unnamed = client.save_weights_and_get_sampling_client()
    path = client.save_weights_for_sampler("weights").result().path
    named = service.create_sampling_client(model_path=path)
    for sampler in (unnamed, named):
        scores = sampler.compute_logprobs(prompt).result()
        assert scores[0] is None
        assert scores[1:] == pytest.approx(expected, abs=1e-4)
    base = service.create_sampling_client(base_model="tiny").compute_logprobs(prompt).result()
    assert base[1:] != pytest.approx(expected, abs=1e-4)
    greedy = types.SamplingParams(max_tokens=6, temperature=0.0)
    first, second = unnamed.sample(prompt, 2, greedy).result().sequences
    assert first.tokens == second.tokens
    steps(client, 2)  # a published version stays as it was
    assert unnamed.sample(prompt, 1, greedy).result().sequences[0].tokens == first.tokens


def test_a_wrong_request_is_told_at_once_and_its_window_is_dropped(service):
    client, other = trainer(service), trainer(service)
    good = client.forward_backward([datum()], "cross_entropy")
    with pytest.raises(tinker.UnprocessableEntityError, match="token"):
        client.forward_backward([datum([1, 10**6, 2])], "cross_entropy").result()
    with pytest.raises(tinker.RequestFailedError, match="a request of its window failed"):
        client.optim_step(ADAM).result()
    good.result()
    assert steps(client, 3) == steps(other, 3)  # as if the window had not been


def test_four_clients_at_once_get_what_one_gets(server):
    def run(number):
        client = trainer(server.client(f"tml-{number}"))
        rows = datum([1 + number, *TOKENS[1:]])
        return steps(client, 4, rows)

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, range(4)))
    assert together == [run(number) for number in range(4)]
