"""stable_reinforce of the real SDK, sampled and sent as its cookbook does: refused, or computed as
importance_sampling where the operator says so."""

import pytest
from service.clients import ADAM, TOKENS, norm_of, tinker, trainer, types

PROMPT = TOKENS[:4]


@pytest.fixture
def server(start, tiny_llama_dir, tmp_path):
    it = start(
        tiny_llama_dir, tmp_path / "state", "--log-level", "off",
        "--stable-reinforce", "importance_sampling",
    )  # fmt: skip
    yield it
    assert it.stop() == 0


def sampled(client):
    """A sample of the client's weights as a datum, with the spans that name where its tokens
    come from."""
    sampler = client.save_weights_and_get_sampling_client(record_stability_info=True)
    params = types.SamplingParams(max_tokens=6, seed=1, stop=[])
    (told,) = sampler.sample(types.ModelInput.from_ints(PROMPT), 1, params).result().sequences
    given, count, of = len(PROMPT), len(told.tokens), {"sequence_id": told.sequence_id}
    tokens = [*PROMPT, *told.tokens]
    inputs = {
        "target_tokens": tokens[1:],
        "logprobs": [0.0] * (given - 1) + [value - 0.5 for value in told.logprobs],
        "advantages": [0.0] * (given - 1) + [1.0, -2.0, 3.0, 1.0, -1.0, 0.5],
    }
    ints = types.ModelInput.from_ints(tokens[:-1])
    return types.Datum(model_input=ints, loss_fn_inputs=inputs).with_provenance(
        model_input=[
            types.PromptProvenanceSpan(length=given, **of),
            types.SampledProvenanceSpan(length=count - 1, **of),
        ],
        loss_fn_inputs=[
            types.PromptProvenanceSpan(offset=1, length=given - 1, **of),
            types.SampledProvenanceSpan(length=count, **of),
        ],
    )


def refused(client, data, config=None):
    with pytest.raises((tinker.UnprocessableEntityError, tinker.RequestFailedError)) as told:
        client.forward_backward(data, "stable_reinforce", config).result()
    return str(told.value)


def test_it_is_importance_sampling_where_the_operator_says_so_also_after_a_kill(server):
    service = server.client()
    client, other = trainer(service), trainer(service)
    data = [sampled(client)]
    told = client.forward_backward(data, "stable_reinforce").result()
    wanted = other.forward_backward(data, "importance_sampling").result()
    assert told.metrics["loss:sum"] == wanted.metrics["loss:sum"] != 0
    assert told.loss_fn_outputs[0]["logprobs"].data == wanted.loss_fn_outputs[0]["logprobs"].data
    del server.command[-2:]  # accepted work is done without the option, too
    server.kill()
    server.start_again()
    norms = [norm_of(each.optim_step(ADAM)) for each in (client, other)]
    assert norms[0] == norms[1] > 0
    assert "--stable-reinforce importance_sampling" in refused(client, data)


def test_an_option_that_importance_sampling_has_not_is_refused_by_its_name(server):
    client = trainer(server.client())
    assert "kl_coeff" in refused(client, [sampled(client)], {"kl_coeff": 0.1})
