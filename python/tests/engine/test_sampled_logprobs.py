"""Log-probabilities that the compiled engine gives beside its text, against transformers."""

import numpy as np
import pytest
import torch
from features import drawn

from twinkle import LoraConfig
from twinkle.engine import Engine
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler

pytestmark = pytest.mark.usefixtures("engine_built")


@pytest.mark.parametrize("logprobs", [1, 3])
def test_what_was_sampled_is_trained_on_as_it_came(tiny_llama_dir, logprobs):
    """GRPO's ratio is 1 where the weights are those that sampled."""
    model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.add_adapter_to_model("a", LoraConfig(r=2))
    model.set_loss("grpo")
    sampler = TorchSampler(model=model)
    row = {"messages": [{"role": "user", "content": "Who are you?"}]}
    (response,) = sampler.sample(row, max_tokens=6, num_samples=2, logprobs=logprobs)
    out = model.forward_backward(
        inputs=[s.new_input_feature for s in response.sequences],
        old_logps=[s.logprobs for s in response.sequences],
        advantages=[1.0, -1.0],
    )
    assert out["loss"] == pytest.approx(0.0, abs=1e-5)


def test_logprobs_of_prompts_and_of_the_likeliest_tokens_equal_transformers(tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    sampler = TorchSampler(tiny_llama_dir, engine_args={"dtype": "float32"})
    params = {"max_tokens": 6, "temperature": 0.7, "logprobs": 4, "prompt_logprobs": 3, "seed": 5}
    prompt = np.random.default_rng(0).integers(3, 300, 80).tolist()
    first, again = sampler.sample([{"input_ids": prompt}] * 2, params)
    assert first == again  # one prompt and one seed: the second shares what the first computed
    (sequence,) = first.sequences
    with torch.no_grad():
        logits = model(torch.tensor([prompt + sequence.tokens])).logits[0].float() / 0.7
    scores = logits.log_softmax(-1)

    def check(pairs, row, count):
        values = scores[row].topk(count).values
        torch.testing.assert_close(
            torch.tensor([p for _, p in pairs[:count]]), values, rtol=0, atol=1e-4
        )
        for token, value in pairs:
            assert abs(float(scores[row, token]) - value) < 1e-4

    assert first.prompt_logprobs[0] is None and first.topk_prompt_logprobs[0] is None
    for t in range(1, 80):
        assert abs(first.prompt_logprobs[t] - float(scores[t - 1, prompt[t]])) < 1e-4
        check(first.topk_prompt_logprobs[t], t - 1, 3)
    for t, (token, pairs) in enumerate(zip(sequence.tokens, sequence.logprobs, strict=True)):
        assert token in [i for i, _ in pairs]
        check(pairs, 79 + t, 4)


def scores_of(tenant, response):
    """The trainer's log-probabilities of a response's prompt and of each of its tokens."""
    prompt, tokens = list(response.prompt_token_ids), list(response.sequences[0].tokens)
    ids = prompt + tokens
    row = {"input_ids": ids, "labels": [*ids[1:], -100]}
    logps = tenant.forward([row]).result().logps[0]
    return logps[: len(prompt) - 1], logps[len(prompt) - 1 : -1]


def given_by(response):
    sampled = [pairs[0][1] for pairs in response.sequences[0].logprobs]
    return np.float32(response.prompt_logprobs[1:]), np.float32(sampled)


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("kind", ["adapters", "all weights"])
def test_sampled_logprobs_of_trained_tenants_are_those_of_their_forward(
    tiny_llama_dir, precision, kind
):
    """Bit for bit in float32; in bfloat16 within 1e-3."""
    engine = Engine(tiny_llama_dir, mixed_precision=precision)
    if kind == "adapters":
        tenants = [
            engine.tenant(f"of rank {rank}", LoraConfig(r=rank, target_modules="all-linear"))
            for rank in (2, 5, 16)
        ]
    else:
        tenants = [engine.tenant("all", None, full_parameters=True)]
    params = {"max_tokens": 20, "seed": 3, "logprobs": 1, "prompt_logprobs": 1}
    prompts = [{"input_ids": row["input_ids"]} for row in drawn([5, 70, 33], seed=1)]
    seen = []
    for step in range(3):
        for tenant in tenants:  # a step that is felt: at first B is zero
            tenant.forward_backward(drawn([9, 14], seed=step))
            tenant.step(lr=0.02).result()
        futures = [tenant.sample(prompts, params) for tenant in tenants]  # in one batch
        for tenant, future in zip(tenants, futures, strict=True):
            for response in future.result():
                for given, wanted in zip(
                    given_by(response), scores_of(tenant, response), strict=True
                ):
                    if precision == "no":
                        assert np.array_equal(given, wanted), (tenant.name, step)
                    else:
                        np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-3)
                seen.append(given_by(response)[0].tobytes())
    assert len(set(seen)) == len(seen)  # every step changed every tenant's weights
