"""An adapter with a head of labels equals transformers' sequence classifier under peft in float32:
logits, losses, the gradients of A, B and score, and files both ways."""

import peft
import pytest
import torch
import transformers
from parity import models, ours
from parity.test_gradients import check, draw_lora
from parity.test_logits_and_embeddings import unscored

CASES = [0, 12, 1, 13, 2, 14]  # every family, tied and not
CENTRE, MARGIN = 0.1, 0.25


def classifier(directory, num_labels):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        directory, num_labels=num_labels, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def adapted(case, num_labels, directory):
    """transformers + peft with random factors and a random head, also written to `directory`."""
    config = draw_lora(case.index)
    config.task_type, config.modules_to_save = "SEQ_CLS", ["score"]
    torch.manual_seed(models.SEED + case.index)
    model = peft.get_peft_model(classifier(case.directory, num_labels), config)
    scale = config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=1 / (scale * config.r**0.5))
            if "score.modules_to_save" in name:
                value.normal_(std=value.shape[1] ** -0.5)
    model.save_pretrained(str(directory))
    return model


def logits_of(model, sequences):
    """[S, n], of each sequence alone: no padding is to be told from its tokens."""
    ids = [torch.as_tensor(sequence["input_ids"])[None] for sequence in sequences]
    return torch.cat([model(row).logits for row in ids])


def our_logits(made, sequences):
    result = made.forward(tenant=ours.TENANT, sequences=sequences).result()
    return torch.stack([torch.as_tensor(row) for row in result["label_logits"]])


def gradients_of(model):
    out = {}
    for name, value in model.named_parameters():
        if value.grad is not None:
            plain = name.removeprefix("base_model.model.").replace(".default", "")
            out[plain.replace(".modules_to_save", "")] = value.grad
    return out


def reward_loss(scores):
    chosen, rejected = scores[::2, 0], scores[1::2, 0]
    pairs = -torch.nn.functional.logsigmoid(chosen - rejected - MARGIN)
    return pairs.mean() + CENTRE * ((chosen + rejected) ** 2).mean()


@pytest.mark.parametrize("num_labels", [1, 4])
@pytest.mark.parametrize("index", CASES, ids=models.name_of)
def test_logits_losses_and_gradients_equal_transformers_under_peft(index, num_labels, tmp_path):
    case = models.case(index)
    model = adapted(case, num_labels, tmp_path / "theirs")
    given = unscored(case.sequences)
    given = given[: len(given) // 2 * 2]
    made = ours.engine(
        case.directory, token_budget=case.token_budget, directory=str(tmp_path / "theirs")
    )
    theirs = logits_of(model, given)
    assert theirs.shape == (len(given), num_labels)
    torch.testing.assert_close(our_logits(made, given), theirs.detach(), rtol=0, atol=1e-4)

    labels = torch.arange(len(given)) % num_labels
    if num_labels == 1:
        expected, loss, options = (
            reward_loss(theirs),
            "RewardLoss",
            f'{{"center_rewards_coefficient": {CENTRE}}}',
        )
        extras = [{"margin": [MARGIN]} for _ in given]
    else:
        expected = torch.nn.functional.cross_entropy(theirs, labels)
        loss, options = "ClassificationLoss", ""
        extras = [{"label": [float(label)]} for label in labels]
    expected.backward()
    learning = [{**row, "extras": more} for row, more in zip(given, extras, strict=True)]
    result = made.forward_backward(
        tenant=ours.TENANT, sequences=learning, loss=loss, loss_options=options
    ).result()
    assert result["loss"] == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    grads = ours.accumulated(made)
    assert "score.weight" in grads
    wanted = gradients_of(model)
    assert grads.keys() == wanted.keys()
    check(grads, wanted)

    made.step(tenant=ours.TENANT, options='{"lr": 0.01}').result()
    saved = str(tmp_path / "ours")
    made.save(tenant=ours.TENANT, directory=saved).result()
    base = classifier(case.directory, num_labels)
    again = peft.PeftModel.from_pretrained(base, saved).eval()
    with torch.no_grad():
        learnt = logits_of(again, given)
    torch.testing.assert_close(our_logits(made, given), learnt, rtol=0, atol=1e-4)
    assert not torch.allclose(learnt, theirs.detach(), atol=1e-3), "the step has changed it"
