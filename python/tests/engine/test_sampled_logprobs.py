"""Log-probabilities that the compiled engine gives beside its text, against transformers."""

import numpy as np
import pytest
import torch

from twinkle.sampler import TorchSampler

pytestmark = pytest.mark.usefixtures("engine_built")


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
