"""SmolLM2-135M-Instruct, a real model: scores, gradients, bfloat16, and its GGUF file."""

import json
import re
import statistics
from pathlib import Path

import peft
import pytest
import torch
from parity import models, ours, reference
from parity.test_gradients import check

ROWS = [
    ("What is the capital of France?", "The capital of France is Paris, on the river Seine."),
    ("Name three primary colours.", "Red, yellow and blue."),
    ("Why is the sky blue?", "Air scatters the short waves of sunlight more than the long ones."),
    ("Add 17 and 25, and then double it.", "17 + 25 = 42, and doubled that is 84."),
]


def chats(tokenizer):
    """Chats whose replies are scored, and one text that is scored whole."""
    out = []
    for question, answer in ROWS:
        head = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        prompt = tokenizer(head)["input_ids"]
        reply = tokenizer(answer + "<|im_end|>\n")["input_ids"]
        ids = prompt + reply
        out.append({"input_ids": ids[:-1], "labels": ([-100] * len(prompt) + reply)[1:]})
    text = " ".join(answer for _, answer in ROWS) + " The quick brown fox jumps over the lazy dog."
    ids = tokenizer(text)["input_ids"]
    out.append({"input_ids": ids[:-1], "labels": ids[1:]})
    return out


@pytest.fixture(scope="module")
def sequences(smollm2_tokenizer):
    return chats(smollm2_tokenizer)


@pytest.fixture(scope="module")
def truth(smollm2, sequences):
    """log p of the scored tokens in float32."""
    with torch.no_grad():
        return [reference.logps(smollm2, s) for s in sequences]


def errors(logps, truth):
    return torch.cat([(a - b)[b != 0].abs() for a, b in zip(logps, truth, strict=True)])


def test_scores_equal_transformers(smollm2_dir, sequences, truth):
    logps, _ = ours.scores(ours.engine(smollm2_dir, frozen=True), sequences)
    assert errors(logps, truth).max() <= 1e-4


def test_weights_are_read_once_and_no_file_is_mapped(smollm2_dir):
    """A file that is mapped ends the process when it gets shorter. rchar is what reads gave."""

    def num_read():
        return int(re.search(r"^rchar: (\d+)$", Path("/proc/self/io").read_text(), re.M)[1])

    def num_mapped():  # the reference in this process may map some
        return Path("/proc/self/maps").read_text().count(str(Path(smollm2_dir).resolve()))

    size = sum(file.stat().st_size for file in Path(smollm2_dir).glob("*.safetensors"))
    assert size > 200e6
    before, mapped = num_read(), num_mapped()
    engine = ours.engine(smollm2_dir, precision="bf16", frozen=True)
    assert size * 0.99 < num_read() - before < size * 1.05
    assert num_mapped() == mapped
    del engine


@pytest.mark.soak  # CI has all drawn models in test_logprobs.py, each family in test_bfloat16.py
def test_bfloat16_is_as_near_to_float32_as_transformers_bfloat16(smollm2_dir, smollm2, gsm8k):
    """Over a thousand tokens: of 50 the means' own scatter is larger than their difference."""
    rows = [row for row in gsm8k if len(row["input_ids"]) <= 128][:24]
    model = models.load_reference(smollm2_dir, torch.bfloat16)
    with torch.no_grad():
        truth, theirs = ([reference.logps(m, s) for s in rows] for m in (smollm2, model))
    logps, _ = ours.scores(ours.engine(smollm2_dir, precision="bf16", frozen=True), rows)
    mine, other = errors(logps, truth), errors(theirs, truth)
    print(f"mean |error| of log p: ours {mine.mean():.5f}, transformers {other.mean():.5f}")
    assert mine.mean() <= other.mean()


def adapted(smollm2_dir, directory, rank=8, targets="all-linear"):
    """peft on float32 weights, both factors random, also written to `directory`."""
    torch.manual_seed(models.SEED)
    config = peft.LoraConfig(r=rank, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
    model = peft.get_peft_model(models.load_reference(smollm2_dir), config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.02)
    model.save_pretrained(str(directory))
    return model


def test_adapter_gradients_equal_peft(smollm2_dir, sequences, tmp_path):
    model = adapted(smollm2_dir, tmp_path)
    made = ours.engine(smollm2_dir, directory=str(tmp_path))
    grads, loss = ours.gradients(made, sequences[:2])
    with torch.no_grad():
        assert loss == pytest.approx(reference.loss(model, sequences[:2]).item(), rel=1e-5)
    check(grads, reference.adapter_gradients(model, sequences[:2]))


def test_bfloat16_gradients_are_no_farther_from_float32s_than_pefts(
    smollm2_dir, smollm2_tokenizer, data_dir, tmp_path
):
    """The mean over 12 texts: of one text either may be nearer, by up to two thirds."""
    model = adapted(smollm2_dir, tmp_path)
    base = models.load_reference(smollm2_dir, torch.bfloat16)
    half = peft.PeftModel.from_pretrained(base, tmp_path, is_trainable=True)
    made = ours.engine(smollm2_dir, precision="bf16", directory=str(tmp_path))
    mine, other = [], []
    with (data_dir / "gsm8k_train.jsonl").open() as lines:
        rows = [json.loads(next(lines)) for _ in range(12)]
    for row in rows:
        ids = smollm2_tokenizer(row["question"] + "\n" + row["answer"])["input_ids"][:32]
        text = [{"input_ids": ids[:-1], "labels": ids[1:]}]
        truth = reference.adapter_gradients(model, text)
        grads, _ = ours.gradients(made, text)
        theirs = reference.adapter_gradients(half, text)
        assert grads.keys() == theirs.keys() == truth.keys()
        for errors, found in ((mine, grads), (other, theirs)):
            errors += [((found[k] - t).norm() / t.norm()).item() for k, t in truth.items()]
    mine, other = statistics.mean(mine), statistics.mean(other)
    print(f"mean relative error of the gradients: ours {mine:.4f}, peft {other:.4f}")
    assert mine <= other


def test_every_weights_gradient_equals_transformers(smollm2_dir, sequences):
    """All 135 million in float32; one sequence, for the memory and the time it takes.

    transformers gives the embedding of pad_token_id no gradient as an input, so that padding learns
    nothing. SmolLM2's is <|im_end|>, which also ends real turns; without padding it learns, too.
    """
    grads, loss = ours.gradients(ours.engine(smollm2_dir), sequences[:1])
    model = models.load_reference(smollm2_dir).requires_grad_(True)
    assert model.model.embed_tokens.padding_idx in sequences[0]["input_ids"]
    model.model.embed_tokens.padding_idx = None
    truth = reference.gradients(model, sequences[:1])
    assert truth.keys() == {name for name, _ in model.named_parameters()}
    with torch.no_grad():
        assert loss == pytest.approx(reference.loss(model, sequences[:1]).item(), rel=1e-5)
    check(grads, truth)


def test_the_gguf_file_itself_gives_the_scores_of_its_converted_directory(smollm2_dir, sequences):
    from twinkle.hub.models import _smollm2_gguf

    gguf = _smollm2_gguf()
    assert gguf is not None
    straight, _ = ours.scores(ours.engine(gguf, frozen=True), sequences)
    converted, _ = ours.scores(ours.engine(smollm2_dir, frozen=True), sequences)
    for a, b in zip(straight, converted, strict=True):
        assert torch.equal(a, b)
