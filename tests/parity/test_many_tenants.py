"""The parity of one tenant holds in company: adapters of several ranks and targets and the base as
it is share an engine's batches, and each equals transformers + peft run for it alone.

Tolerances are those of the other files: scores 1e-4, gradients 1e-4 relative, losses 1e-3.
"""

from dataclasses import dataclass

import pytest
import torch
from parity import models, ours, reference, test_smollm2
from parity.test_generation import TEXTS
from parity.test_gradients import adapted, draw_lora
from parity.test_gradients import check as check_gradients
from parity.test_training import OPTIMIZERS, SHORT, batches_of, short_batches_of, their_curve
from parity.test_training import check as check_curve

from twinkle.engine import Engine

BASE = "base"
TEXT = 64  # tokens
STEPS, REAL_STEPS = 5, 4  # drawn models and SmolLM2; test_training.py takes ten
LONG = [3 + i % 50 for i in range(250)]
BUSY = 16  # batches that are there to be waited for: more than run while operations are submitted


@dataclass
class Alone:
    """A tenant's peer, which has its model for itself, and what both are given."""

    model: object
    sequences: list
    prompt: list
    batches: list  # one a step; the base has none


class Crowd:
    """An engine whose tenants are `alone`'s: adapters read from folder/NAME, and the base."""

    def __init__(self, directory, folder, alone, rows=16):
        self.alone = alone
        self.busy = [{"input_ids": LONG, "labels": LONG}] * rows  # they fill a batch
        self.engine = Engine(
            directory, mixed_precision="no", token_budget=rows * len(LONG), device=ours.DEVICE
        )
        self.other = self.engine.tenant("other", None, priority=1)
        self.tenants = {
            name: self.engine.tenant(name, None if name == BASE else str(folder / name))
            for name in alone
        }
        self.adapters = [name for name in alone if name != BASE]

    def together(self, submit, names):
        """{name: result of submit(name, tenant)}, of operations that all wait before the first of
        them begins, and one more than the training batches that they took."""
        running = [self.other.forward(self.busy) for _ in range(BUSY)]
        futures = {name: submit(name, self.tenants[name]) for name in names}
        for busy in reversed(running):
            busy.cancel()
        before = self.engine.stats()["num_batches"]
        results = {name: resolved(future) for name, future in futures.items()}
        return results, self.engine.stats()["num_batches"] - before + 1


def resolved(future):
    return [resolved(f) for f in future] if isinstance(future, list) else future.result()


def inputs(sequences):
    """Sequences as InputFeatures: weights are called loss_scale there."""
    return [
        {"loss_scale" if key == "weights" else key: value for key, value in sequence.items()}
        for sequence in sequences
    ]


def drawn_crowd(index, gsm8k, folder):
    case = models.case(index)
    vocab = case.reference.config.vocab_size
    alone = {BASE: Alone(case.reference, case.sequences, case.prompts[0], [])}
    for t in range(3):
        name = f"tenant{t}"
        model = adapted(case, folder / name, draw_lora(index + 101 * t))
        turned = case.sequences[2 * t :] + case.sequences[: 2 * t]
        batches = batches_of(gsm8k[40 * t :], models.MAX_POSITIONS, vocab)[:STEPS]
        alone[name] = Alone(model, turned[: 3 + t], case.prompts[t], batches)
    return Crowd(case.directory, folder, alone)


def smollm2_crowd(directory, tokenizer, gsm8k, folder):
    batches = short_batches_of(gsm8k)
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    rows = [row for row in gsm8k if len(row["input_ids"]) <= SHORT]  # for the time they take
    alone = {BASE: Alone(models.load_reference(directory), rows[:2], prompts[3], [])}
    adapters = (16, "all-linear"), (4, ["q_proj", "v_proj"]), (8, ["up_proj", "down_proj"])
    for t, (rank, targets) in enumerate(adapters):
        name = f"tenant{t}"
        model = test_smollm2.adapted(directory, folder / name, rank, targets)
        steps = batches[3 * t : 3 * t + REAL_STEPS]
        alone[name] = Alone(model, rows[t : t + 1 + t % 2], prompts[t], steps)
    return Crowd(directory, folder, alone, rows=8)


@pytest.fixture(
    scope="module",
    params=[*models.ONE_OF_EACH, "smollm2"],
    ids=lambda what: what if what == "smollm2" else models.name_of(what),
)
def crowd(request, gsm8k, tmp_path_factory):
    return crowd_of(request.param, gsm8k, tmp_path_factory.mktemp("crowd"), request)


def crowd_of(case, gsm8k, folder, request):
    """case: a drawn model's index, or 'smollm2'."""
    if case != "smollm2":
        return drawn_crowd(case, gsm8k, folder)
    directory, tokenizer = map(request.getfixturevalue, ("smollm2_dir", "smollm2_tokenizer"))
    return smollm2_crowd(directory, tokenizer, gsm8k, folder)


def test_each_tenants_scores_equal_transformers_and_peft(crowd):
    found, batches = crowd.together(
        lambda name, tenant: tenant.forward(inputs(crowd.alone[name].sequences), entropy=True),
        list(crowd.alone),
    )
    assert batches < 1 + len(crowd.alone)  # shared: fewer than one each
    for name, alone in crowd.alone.items():
        for i, sequence in enumerate(alone.sequences):
            with torch.no_grad():
                expected = reference.scores(alone.model, sequence)
            for mine, theirs in zip(
                (found[name]["logps"][i], found[name]["entropies"][i]), expected, strict=True
            ):
                torch.testing.assert_close(torch.as_tensor(mine), theirs, rtol=0, atol=1e-4)


def test_each_adapters_gradients_equal_peft(crowd):
    found, batches = crowd.together(
        lambda name, tenant: tenant.forward_backward(inputs(crowd.alone[name].sequences)),
        crowd.adapters,
    )
    assert batches < 1 + len(crowd.adapters)
    for name in crowd.adapters:
        alone, tenant = crowd.alone[name], crowd.tenants[name]
        with torch.no_grad():
            loss = reference.loss(alone.model, alone.sequences).item()
        assert found[name]["loss"] == pytest.approx(loss, rel=1e-5)
        tensors = tenant.inspect(tensors=True).result()["tensors"]
        grads = {
            key.removeprefix("grad/"): torch.as_tensor(value)
            for key, value in tensors.items()
            if key.startswith("grad/")
        }
        expected = reference.adapter_gradients(alone.model, alone.sequences)
        assert grads.keys() == expected.keys()
        tenant.zero_grad().result()
        check_gradients(grads, expected)


def draw_losses(crowd):
    """{name: (loss, its extras)}: of cross entropy, and linear in log-probabilities, and in
    entropies too."""
    torch.manual_seed(models.SEED)
    kinds = {}
    for name, of in zip(crowd.adapters, ((), ("grad",), ("grad", "entropy_grad")), strict=True):
        lengths = [len(sequence["labels"]) for sequence in crowd.alone[name].sequences]
        extras = {key: [torch.randn(length).numpy() for length in lengths] for key in of}
        kinds[name] = ("LinearLoss" if of else "CrossEntropyLoss", extras)
    return kinds


def their_gradients(alone, extras):
    """The gradients of the same loss in torch, by the names of ours."""
    if not extras:
        return reference.adapter_gradients(alone.model, alone.sequences)
    alone.model.zero_grad()
    total = 0
    for i, sequence in enumerate(alone.sequences):
        for value, key in zip(
            reference.scores(alone.model, sequence), ("grad", "entropy_grad"), strict=True
        ):
            if key in extras:
                total = total + (value * torch.from_numpy(extras[key][i])).sum()
    total.backward()
    return reference.named_as_ours(reference.accumulated(alone.model))


@pytest.mark.parametrize("crowd", models.ONE_OF_EACH, indirect=True, ids=models.name_of)
def test_tenants_of_other_losses_share_a_batch_and_each_equals_peft_and_itself_alone(crowd):
    kinds = draw_losses(crowd)

    def submit(name, tenant):
        loss, extras = kinds[name]
        sequences = inputs(crowd.alone[name].sequences)
        if extras:  # weights are cross entropy's
            sequences = [{k: s[k] for k in ("input_ids", "labels")} for s in sequences]
        return tenant.forward_backward(sequences, loss, **extras)

    def gradients(name):
        tensors = crowd.tenants[name].inspect(tensors=True).result()["tensors"]
        crowd.tenants[name].zero_grad().result()
        return {
            key.removeprefix("grad/"): torch.as_tensor(value)
            for key, value in tensors.items()
            if key.startswith("grad/")
        }

    found, batches = crowd.together(submit, crowd.adapters)
    assert batches < 1 + len(crowd.adapters)
    together = {name: gradients(name) for name in crowd.adapters}
    for name in crowd.adapters:
        alone = submit(name, crowd.tenants[name]).result()
        assert alone["loss"] == found[name]["loss"]
        for key, value in gradients(name).items():
            assert torch.equal(value, together[name][key]), key
        check_gradients(together[name], their_gradients(crowd.alone[name], kinds[name][1]))


def test_each_tenants_text_and_steps_equal_transformers_and_peft(crowd):
    """All sample at the same time with the weights as they are, while the adapters train on."""
    steps_before = crowd.engine.stats()["num_sampling_steps"]

    samples = {}

    def submit(name, tenant):
        if not samples:  # all at once: what is trained takes longer to submit than a text may take
            sampling = {"max_tokens": TEXT, "temperature": 0.0}
            for each, alone in crowd.alone.items():
                prompt = [{"input_ids": alone.prompt}]
                samples[each] = crowd.tenants[each].sample(prompt, sampling)
        futures = [samples[name]]
        for batch in crowd.alone[name].batches:
            futures.append(tenant.forward_backward(inputs(batch)))
            futures.append(tenant.step("AdamW", max_grad_norm=1.0, **OPTIMIZERS["AdamW"][1]))
        return futures

    found, batches = crowd.together(submit, list(crowd.alone))
    operations = sum(len(alone.batches) for alone in crowd.alone.values())
    assert batches <= 1 + operations // 2
    assert crowd.engine.stats()["num_sampling_steps"] - steps_before <= len(crowd.alone) * TEXT // 2
    for name, alone in crowd.alone.items():
        (sampled,), *trained = found[name]
        tokens = sampled.sequences[0].tokens
        assert reference.is_whole(alone.model, tokens, TEXT)
        assert tokens == reference.most_probable(alone.model, alone.prompt, tokens)
        if name == BASE:
            continue
        backwards, steps = trained[::2], trained[1::2]
        mine = [b["loss"] / b["num_tokens"] for b in backwards], [s["grad_norm"] for s in steps]
        alone.model.zero_grad()
        check_curve(mine, their_curve(alone.model, alone.batches, "AdamW"))
