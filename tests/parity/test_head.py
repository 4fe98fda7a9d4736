"""An adapter on the head, tied to the embedding or not, equals peft's: losses, gradients, steps,
texts, files and neighbours. Tolerances are those of the other tests of parity.
"""

import json

import peft
import pytest
import safetensors.torch
import torch
from parity import models, ours, reference
from parity.test_files import check as check_scores
from parity.test_files import learn
from parity.test_gradients import adapted, check
from parity.test_training import check as check_curves
from parity.test_training import our_curve, their_curve

from twinkle.errors import InvalidError

SOME = models.ONE_OF_EACH[:5]  # one of every family, tied or not in turn
TARGETS = [["lm_head"], ["q_proj", "down_proj", "lm_head"], r".*(v_proj|lm_head)"]


def config(index, **options):
    return peft.LoraConfig(
        r=3,
        lora_alpha=8,
        target_modules=TARGETS[index % len(TARGETS)],
        task_type="CAUSAL_LM",
        **options,
    )


def engine(case, directory, **options):
    return ours.engine(
        case.directory, token_budget=case.token_budget, directory=str(directory), **options
    )


def test_tied_heads_and_others_are_among_them():
    assert {models.draw(index).fields["tie_word_embeddings"] for index in SOME} == {True, False}


@pytest.mark.parametrize("index", SOME, ids=models.name_of)
def test_losses_and_gradients_equal_pefts(index, tmp_path):
    case = models.case(index)
    model = adapted(case, tmp_path, config(index))
    made = engine(case, tmp_path)
    grads, loss = ours.gradients(made, case.sequences)
    with torch.no_grad():
        assert loss == pytest.approx(reference.loss(model, case.sequences).item(), rel=1e-5)
    expected = reference.adapter_gradients(model, case.sequences)
    assert "lm_head.lora_B.weight" in grads and grads.keys() == expected.keys()
    check(grads, expected)


@pytest.mark.parametrize("index", SOME[:2], ids=models.name_of)
def test_gradients_through_logits_equal_pefts(index, tmp_path):
    case = models.case(index)
    model = adapted(case, tmp_path, config(index))
    made = engine(case, tmp_path)
    given, total = [], 0
    for sequence in case.sequences:
        logits = model(torch.as_tensor(sequence["input_ids"])[None]).logits[0]
        grad = torch.randn(logits.shape) / logits.shape[1]
        given.append({"input_ids": sequence["input_ids"], "logits_grad": grad.numpy().ravel()})
        total = total + (logits * grad).sum()
    total.backward()
    result = made.forward_backward(tenant=ours.TENANT, sequences=given, loss="LinearLoss").result()
    assert result["loss"] == pytest.approx(total.item(), rel=1e-4, abs=1e-4)
    check(ours.accumulated(made), reference.named_as_ours(reference.accumulated(model)))


@pytest.mark.parametrize("index", SOME, ids=models.name_of)
def test_ten_steps_equal_pefts(index, tmp_path):
    case = models.case(index)
    model = adapted(case, tmp_path, config(index))
    made = engine(case, tmp_path)
    rows = [{key: row[key] for key in ("input_ids", "labels")} for row in case.sequences]
    rows = [row for row in rows if reference.num_tokens([row])]
    batches = [rows[i % len(rows) :][:2] for i in range(10)]
    mine = our_curve(made, batches, "AdamW")
    check_curves(mine, their_curve(model, batches, "AdamW"))


@pytest.mark.parametrize("index", SOME, ids=models.name_of)
def test_greedy_texts_and_their_logprobs_equal_pefts(index, tmp_path):
    case = models.case(index)
    model = adapted(case, tmp_path, config(index))
    made = engine(case, tmp_path)
    replies = ours.greedy(made, case.prompts, 16)
    for prompt, (tokens, logprobs) in zip(case.prompts, replies, strict=True):
        assert tokens == reference.greedy(model, prompt, 16)
        row = {"input_ids": prompt + tokens[:-1], "labels": [-100] * (len(prompt) - 1) + tokens}
        with torch.no_grad():
            expected = reference.logps(model, row)
        given = torch.as_tensor(logprobs)
        torch.testing.assert_close(given, expected[len(prompt) - 1 :], rtol=0, atol=1e-4)


@pytest.mark.parametrize("index", SOME, ids=models.name_of)
def test_files_go_both_ways_and_hold_factors_alone(index, tmp_path):
    """peft's own hold the base model's head, too."""
    case = models.case(index)
    model = adapted(case, tmp_path / "theirs", config(index))
    theirs = safetensors.torch.load_file(tmp_path / "theirs" / "adapter_model.safetensors")
    assert "base_model.model.lm_head.base_layer.weight" in theirs
    made = engine(case, tmp_path / "theirs")
    check_scores(made, model, case)
    learn(made, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    files = safetensors.torch.load_file(tmp_path / "mine" / "adapter_model.safetensors")
    assert "base_model.model.lm_head.lora_A.weight" in files
    assert all(".lora_" in name for name in files)
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), tmp_path / "mine")
    check_scores(made, back, case)


@pytest.mark.parametrize("index", SOME[:2], ids=models.name_of)
def test_embeddings_that_peft_saved_with_an_adapter_must_be_the_bases(index, tmp_path):
    """With an adapter on other modules, peft's file has the embedding and the head as they are."""
    case = models.case(index)
    some = peft.LoraConfig(r=3, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    model = adapted(case, tmp_path, some)
    embedding = model.get_input_embeddings().weight
    model.save_pretrained(str(tmp_path), save_embedding_layers=True)
    name = "base_model.model.model.embed_tokens.weight"
    saved = safetensors.torch.load_file(tmp_path / "adapter_model.safetensors")
    assert torch.equal(saved[name], embedding)
    check_scores(engine(case, tmp_path), model, case)
    with torch.no_grad():
        embedding[0, 0] += 1
    model.save_pretrained(str(tmp_path), save_embedding_layers=True)
    first = "lm_head" if model.config.tie_word_embeddings else "embed_tokens"  # the same tensor
    with pytest.raises(InvalidError, match=rf"{first}\.weight' is not this base model's"):
        engine(case, tmp_path)


def test_a_head_that_was_trained_itself_is_refused(tmp_path):
    case = models.case(SOME[0])
    model = adapted(case, tmp_path, config(0))
    with torch.no_grad():
        model.get_output_embeddings().base_layer.weight[0, 0] += 1
    model.save_pretrained(str(tmp_path))
    with pytest.raises(InvalidError, match=r"'base_model\.model\.lm_head\.base_layer\.weight' is"):
        engine(case, tmp_path)


@pytest.mark.parametrize("of", [["lm_head"], ".*head"])
def test_adapters_tied_to_the_embeddings_are_refused(of):
    fields = {"r": 2, "target_modules": of, "ensure_weight_tying": True}
    with pytest.raises(InvalidError, match="field 'ensure_weight_tying' is true, it must be false"):
        ours.engine(models.case(0).directory, lora_json=json.dumps(fields))


def test_all_linear_leaves_the_head_out_as_peft_does(tmp_path):
    case = models.case(SOME[0])
    every = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    model = adapted(case, tmp_path, every)
    grads, _ = ours.gradients(engine(case, tmp_path), case.sequences)
    assert grads.keys() == reference.adapter_gradients(model, case.sequences).keys()
    assert not any(name.startswith("lm_head") for name in grads)
