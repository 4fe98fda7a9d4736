"""Gemma alone. Gemma 3 inside a model with pictures, by the names of the hub's files and by those
that transformers saves: the same bits as the text model alone, saves in the layout that came in,
and adapters under the paths of transformers' class. Capped logits, and adapters on a head that has
a cap; the root by which embeddings are scaled.

The rest of the text model: test_families.py and its neighbours.
"""

import json
import shutil
from pathlib import Path

import peft
import pytest
import safetensors.torch
import torch
import transformers
from parity import models, ours, reference
from parity.families import recipes as families
from parity.families.test_bad_files import changed, expect_refusal
from parity.families.test_families import FIELDS, expect_scores, learn, tensors_in
from parity.test_gradients import adapted, check
from parity.test_training import check as check_curves
from parity.test_training import our_curve, their_curve

from twinkle.errors import InvalidError

VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 8,
    "image_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "patch_size": 4,
    "vision_use_head": False,
}
UNREAD = {
    "vision_tower.vision_model.embeddings.patch_embedding.weight": torch.ones(8, 3, 4, 4),
    "multi_modal_projector.mm_soft_emb_norm.weight": torch.linspace(-1, 1, 8),
}
EACH_LAYOUT = pytest.mark.parametrize("older", [False, True], ids=["transformers 5", "the hub"])


def with_pictures(case, folder, older):
    """The case's text model in a folder of a model with pictures."""
    root, vision = ("language_model.model.", "") if older else ("model.language_model.", "model.")
    files = {root + k.removeprefix("model."): t for k, t in tensors_in(case.directory).items()}
    files |= {vision + key: value for key, value in UNREAD.items()}
    text = json.loads((Path(case.directory) / "config.json").read_text())
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    for key in ("architectures", "tie_word_embeddings", "dtype"):
        text.pop(key, None)
    config |= {"text_config": text | {"model_type": "gemma3_text"}, "vision_config": VISION}
    config |= {"mm_tokens_per_image": 4, "dtype": "float32"}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(files, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def whole(folder):
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    assert type(model).__name__ == "Gemma3ForConditionalGeneration"
    return model.eval()


def equal_scores(one, other, case):
    for mine, theirs in zip(
        *(ours.scores(made, case.sequences)[0] for made in (one, other)), strict=True
    ):
        assert torch.equal(mine, theirs)


@EACH_LAYOUT
def test_the_text_model_has_the_bits_that_it_has_alone_and_is_saved_as_it_came(older, tmp_path):
    case = families.case("gemma3")
    folder = with_pictures(case, tmp_path / "given", older)
    made, alone = ours.engine(folder), ours.engine(case.directory)
    equal_scores(made, alone, case)
    for each in (made, alone):
        learn(each, case)
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "saved")).result()
    before, saved = tensors_in(folder), tensors_in(tmp_path / "saved")
    assert before.keys() == saved.keys()
    for key, value in before.items():
        assert torch.equal(value, saved[key]) == ("vision" in key or "projector" in key), key
    equal_scores(ours.engine(str(tmp_path / "saved")), alone, case)
    expect_scores(made, whole(tmp_path / "saved"), case)
    made.load(tenant=ours.TENANT, directory=str(tmp_path / "saved")).result()
    equal_scores(made, alone, case)


@EACH_LAYOUT
def test_an_adapter_of_the_text_class_is_read_and_saved_under_the_other_classs_paths(
    older, tmp_path
):
    case = families.case("gemma3")
    model = adapted(case, tmp_path / "theirs", peft.LoraConfig(**FIELDS))
    folder = with_pictures(case, tmp_path / "given", older)
    nested, flat = (
        ours.engine(base, directory=str(tmp_path / "theirs")) for base in (folder, case.directory)
    )
    expect_scores(nested, model, case)
    equal_scores(nested, flat, case)
    learn(nested, case)
    nested.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    keys = safetensors.torch.load_file(tmp_path / "mine" / "adapter_model.safetensors")
    assert all(key.startswith("base_model.model.model.language_model.layers.") for key in keys)
    causal = models.load_reference(folder)
    for base in (whole(folder), causal):  # they are one class: docs/training.md
        expect_scores(nested, peft.PeftModel.from_pretrained(base, tmp_path / "mine"), case)
    flat.load(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    equal_scores(nested, flat, case)


ROOTS = ("model.", "model.language_model.", "language_model.model.")


@pytest.mark.parametrize("given", ROOTS)
@pytest.mark.parametrize("asked", ROOTS)
def test_a_load_of_other_names_says_which_and_whose(asked, given, tmp_path):
    case = families.case("gemma3")

    def folder_of(root, name):
        at = tmp_path / name
        return case.directory if root == ROOTS[0] else with_pictures(case, at, root == ROOTS[2])

    made, other = ours.engine(folder_of(asked, "mine")), folder_of(given, "other")
    if asked == given:
        made.load(tenant=ours.TENANT, directory=other).result()
        return
    with pytest.raises(InvalidError) as refused:
        made.load(tenant=ours.TENANT, directory=other).result()
    reason = "another class of this family" if ROOTS[0] in (asked, given) else "by other names than"
    names = [f"embedding is {given}embed_", f"engine's is {asked}embed_"]
    for word in (f"load: {other}", reason, *names, f"make an engine of {other}"):
        assert word in str(refused.value), refused.value


def test_a_config_of_another_class_than_the_weights_is_what_is_wrong(tmp_path):
    case = families.case("gemma3")
    folder = with_pictures(case, tmp_path / "given", older=False)
    shutil.copy(Path(case.directory) / "config.json", folder)
    words = ["model.language_model.embed_tokens.weight", "its config.json asks for model.embed_tok"]
    expect_refusal(folder, folder, *words, "take the config.json that was saved with these weights")


@pytest.mark.parametrize("name", [*families.GEMMA, "gemma3_capped"])
def test_logits_are_transformers_capped_ones(name):
    case = families.case(name)
    given = logits_of(case.directory, "no", case.sequences)
    for row, logits in zip(case.sequences, given, strict=True):
        with torch.no_grad():
            theirs = case.reference(torch.tensor([row["input_ids"]])).logits[0]
        torch.testing.assert_close(logits, theirs, rtol=0, atol=1e-4)
        assert (logits.abs().max() <= 3.0) == (name != "gemma3")


def logits_of(folder, precision, rows):
    """Ours, of each row."""
    made = ours.engine(folder, precision=precision, frozen=True)
    rows = [{"input_ids": row["input_ids"]} for row in rows]
    given = made.forward(tenant=ours.TENANT, sequences=rows, logits=True).result()["logits"]
    return [torch.as_tensor(logits) for logits in given]


@pytest.mark.parametrize("name", families.GEMMA)
def test_in_bfloat16_embeddings_are_scaled_by_the_root_of_their_width_rounded_to_it(name, tmp_path):
    """A model whose layers add nothing and whose eps keeps the size of the embeddings in the
    logits: with the root that is not rounded, as in float32, they are smaller."""
    case = families.case(name)
    tensors = tensors_in(case.directory)
    for key, value in tensors.items():
        if key.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            value.fill_(-1)  # 0 with the 1 that is added
    tensors["model.embed_tokens.weight"].mul_(0.1)
    tensors = {key: value.bfloat16() for key, value in tensors.items()}
    fields = {"rms_norm_eps": 1.0, "final_logit_softcapping": None}
    folder = changed(name, tmp_path, tensors, fields)
    rows = [{"input_ids": list(range(families.SIZES["vocab_size"]))}]
    with torch.no_grad():
        ids = torch.tensor([rows[0]["input_ids"]])
        theirs = models.load_reference(folder, torch.bfloat16)(ids).logits[0].double()
    (narrow,), (wide,) = (logits_of(folder, precision, rows) for precision in ("bf16", "no"))
    factors = [((mine * theirs).sum() / theirs.square().sum()).item() for mine in (narrow, wide)]
    assert factors[0] == pytest.approx(1, abs=2e-4)
    assert factors[1] < 0.9992, "nothing is rounded"


CAPPED_HEADS = pytest.mark.parametrize(
    ("name", "targets"), [("gemma2", ["q_proj", "lm_head"]), ("gemma3_capped", ["lm_head"])]
)


def with_capped_head(case, targets, folder):
    """peft's model with such an adapter, and our engine that has read it."""
    config = peft.LoraConfig(r=3, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM")
    return adapted(case, folder, config), ours.engine(case.directory, directory=str(folder))


@CAPPED_HEADS
def test_gradients_of_an_adapter_on_a_capped_head_equal_pefts(name, targets, tmp_path):
    """Gradients of log-probabilities, and through logits."""
    case = families.case(name)
    model, made = with_capped_head(case, targets, tmp_path)
    grads, _ = ours.gradients(made, case.sequences)
    expected = reference.adapter_gradients(model, case.sequences)
    assert "lm_head.lora_B.weight" in grads and grads.keys() == expected.keys()
    check(grads, expected)
    model.zero_grad()
    made.zero_grad(tenant=ours.TENANT).result()
    given = []
    for sequence in case.sequences:
        logits = model(torch.as_tensor(sequence["input_ids"])[None]).logits[0]
        grad = torch.randn(logits.shape) / logits.shape[1]
        given.append({"input_ids": sequence["input_ids"], "logits_grad": grad.numpy().ravel()})
        (logits * grad).sum().backward()
    made.forward_backward(tenant=ours.TENANT, sequences=given, loss="LinearLoss").result()
    check(ours.accumulated(made), reference.named_as_ours(reference.accumulated(model)))


@CAPPED_HEADS
def test_an_adapter_on_a_capped_head_learns_and_samples_as_pefts(name, targets, tmp_path):
    case = families.case(name)
    model, made = with_capped_head(case, targets, tmp_path / "theirs")
    expect_scores(made, model, case)
    rows = [{key: row[key] for key in ("input_ids", "labels")} for row in case.sequences]
    batches = [rows[:2], rows[1:], rows[:1]] * 2
    check_curves(our_curve(made, batches, "AdamW"), their_curve(model, batches, "AdamW"))
    made.save(tenant=ours.TENANT, directory=str(tmp_path / "mine")).result()
    back = peft.PeftModel.from_pretrained(case.fresh_reference(), tmp_path / "mine")
    expect_scores(made, back, case)
    replies = ours.greedy(made, case.prompts, 16)
    for prompt, (tokens, logprobs) in zip(case.prompts, replies, strict=True):
        assert tokens == reference.greedy(back, prompt, 16)
        row = {"input_ids": prompt + tokens[:-1], "labels": [-100] * (len(prompt) - 1) + tokens}
        ((score,), _) = ours.scores(made, [row])
        assert torch.equal(torch.as_tensor(logprobs), score[len(prompt) - 1 :])
