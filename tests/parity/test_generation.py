"""Greedy text equals transformers', and the sampler's log-probabilities are those of the scores."""

import pytest
import torch
from parity import models, ours, reference

ALL = range(models.COUNT)
TEXTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite two sentences about rivers.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time there was a little girl who",
    "def fibonacci(n):\n",
]


def window(index):
    return models.draw(index).fields.get("sliding_window")


@pytest.mark.parametrize("index", ALL, ids=models.name_of)
def test_greedy_tokens_equal_transformers(index):
    """One model of every family and rope kind is compared with generate and its cache."""
    case = models.case(index)
    made = ours.engine(case.directory, frozen=True)
    replies = ours.greedy(made, case.prompts, 64)
    for prompt, (tokens, _) in zip(case.prompts, replies, strict=True):
        assert len(tokens) == 64
        if index in models.ONE_OF_EACH:
            assert tokens == reference.greedy(case.reference, prompt, 64)
        else:
            assert tokens == reference.most_probable(case.reference, prompt, tokens)


@pytest.mark.parametrize("of_one", [True, False], ids=["1", "wider"])
def test_with_a_window_of_1_transformers_cache_disagrees_with_its_own_forward(of_one):
    """Why reference.greedy goes without it there, and only there."""
    cases = [models.case(i) for i in ALL if window(i) and (window(i) == 1) == of_one]
    if not cases:
        pytest.skip("no such window was drawn")
    far = []
    for case in cases:
        prompt = max(case.prompts, key=len)
        with torch.no_grad():
            whole = case.reference(torch.tensor([prompt])).logits[0]
            stepped = reference.step_by_step(case.reference, prompt)
        far.append((whole - stepped).abs().max().item())
    assert max(far) > 0.1 if of_one else max(far) < 1e-3, far


@pytest.mark.parametrize("index", ALL, ids=models.name_of)
def test_sampled_logprobs_equal_transformers_scores_of_the_same_tokens(index):
    """At temperature 0 the engine reports them under the unmodified distribution."""
    case = models.case(index)
    made = ours.engine(case.directory, frozen=True)
    for prompt, (tokens, logprobs) in zip(
        case.prompts, ours.greedy(made, case.prompts, 16), strict=True
    ):
        row = {"input_ids": prompt + tokens[:-1], "labels": [-100] * (len(prompt) - 1) + tokens}
        with torch.no_grad():
            expected = reference.logps(case.reference, row)
        given = torch.as_tensor(logprobs)
        torch.testing.assert_close(given, expected[len(prompt) - 1 :], rtol=0, atol=1e-4)


def test_greedy_text_of_an_adapter_equals_peft(tmp_path):
    from parity.test_gradients import adapted

    case = models.case(5)
    model = adapted(case, tmp_path)
    made = ours.engine(case.directory, directory=str(tmp_path))
    for prompt, (tokens, _) in zip(case.prompts, ours.greedy(made, case.prompts, 64), strict=True):
        assert tokens == reference.greedy(model, prompt, 64)


@pytest.mark.parametrize(("precision", "tolerance"), [("no", 0), ("bf16", 1e-3)])
def test_smollm2s_sampled_logprobs_are_those_of_its_scores(
    precision, tolerance, smollm2_tokenizer, smollm2_dir
):
    """Log-probabilities of replies sampled together, scored as training would: packed, all at
    once."""
    prompts = [smollm2_tokenizer(text)["input_ids"] for text in TEXTS]
    made = ours.engine(smollm2_dir, precision=precision, frozen=True)
    replies = ours.greedy(made, prompts, 32)
    rows = [
        {"input_ids": prompt + tokens[:-1], "labels": [-100] * (len(prompt) - 1) + tokens}
        for prompt, (tokens, _) in zip(prompts, replies, strict=True)
    ]
    scores, _ = ours.scores(made, rows)
    for prompt, (_, sampled), scored in zip(prompts, replies, scores, strict=True):
        given = torch.as_tensor(sampled)
        torch.testing.assert_close(given, scored[len(prompt) - 1 :], rtol=0, atol=tolerance)


def test_smollm2_writes_the_text_that_transformers_writes(smollm2, smollm2_tokenizer, smollm2_dir):
    """Each text is one forward's most probable tokens; the beginning of one is generate's, too."""
    prompts = [smollm2_tokenizer(text)["input_ids"] for text in TEXTS]
    made = ours.engine(smollm2_dir, frozen=True)
    replies = ours.greedy(made, prompts, 64)
    for prompt, (tokens, _) in zip(prompts, replies, strict=True):
        assert reference.is_whole(smollm2, tokens, 64)
        assert tokens == reference.most_probable(smollm2, prompt, tokens)
    begin = replies[2][0][:16]
    assert begin == reference.greedy(smollm2, prompts[2], len(begin))
