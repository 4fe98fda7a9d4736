"""Losses on the compiled engine: their gradients against transformers and autograd, micro-batches,
accumulation, and that models learn by them."""

import math

import numpy as np
import pytest
import torch
from features import drawn

from twinkle import InvalidError, LoraConfig, NotAvailableError
from twinkle.loss import (
    ChunkedCrossEntropyLoss,
    CISPOLoss,
    CrossEntropyLoss,
    DPOLoss,
    GKDLoss,
    GRPOLoss,
    GSPOLoss,
    InfonceLoss,
    KTOLoss,
    LigerFusedLinearCrossEntropyLoss,
    OPSDLoss,
    SimPOLoss,
)
from twinkle.model import TransformersModel

pytestmark = pytest.mark.usefixtures("engine_built")

BATCH = drawn([7, 17, 9, 12])
COUNTS = [int((f["labels"] != -100).sum()) for f in BATCH]
ADVANTAGES = [1.5, -0.5, 0.25, -1.0]
MARKED = [
    {"input_ids": f["input_ids"], "labels": [mark]}
    for f, mark in zip(drawn([8, 12, 3, 7, 5]), [1, 0, 1, 0, 0], strict=True)
]


@pytest.fixture
def fp32(tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.set_optimizer("SGD", lr=0.5, weight_decay=0.0)
    return model


@pytest.fixture
def reference(tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)


def gradients(model):
    """{name: accumulated gradient} of the engine, not yet divided."""
    tensors = model.engine.inspect(tenant=model._group().tenant, tensors=True).result()["tensors"]
    return {n.removeprefix("grad/"): v for n, v in tensors.items() if n.startswith("grad/")}


def assert_gradients_equal(model, reference, loss):
    reference.zero_grad()
    loss.backward()
    ours = gradients(model)
    for name, weight in reference.named_parameters():
        if weight.grad is None:  # the head, by a loss of embeddings
            assert name not in ours, name
            continue
        scale = float(weight.grad.abs().max())
        torch.testing.assert_close(
            torch.as_tensor(ours[name]), weight.grad, rtol=2e-3, atol=2e-4 * scale + 1e-9, msg=name
        )


def logits_of(reference, feature):
    """Log-probabilities of its labels that are not ignored, and these labels."""
    labels = torch.as_tensor(feature["labels"])
    kept = labels != -100
    logits = reference(torch.as_tensor(feature["input_ids"])[None]).logits[0]
    return logits[kept], labels[kept]


def logps_of(reference, feature):
    logits, labels = logits_of(reference, feature)
    return logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]


def shaken(model, seed=5):
    """Log-probabilities of another policy: the model's, moved at random, a list for each label."""
    rng = np.random.default_rng(seed)
    logps = model.forward_only(inputs=BATCH)["logps"]
    return [
        (row[: len(f["labels"])][f["labels"] != -100] + rng.normal(0, 0.3, count)).tolist()
        for row, f, count in zip(logps.numpy(), BATCH, COUNTS, strict=True)
    ]


def grpo_by_hand(reference, old):
    total = 0
    for feature, o, a in zip(BATCH, old, ADVANTAGES, strict=True):
        logits, _ = logits_of(reference, feature)
        logps, all_logps = logps_of(reference, feature), logits.log_softmax(-1)
        ratio = (logps - torch.tensor(o)).exp()
        surrogate = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
        entropy = -(all_logps.exp() * all_logps).sum(-1)
        total = total - (surrogate + 0.05 * entropy).mean()
    return total / len(BATCH)


def test_grpo_and_its_entropy_bonus_train_as_autograd_says(fp32, reference):
    fp32.set_loss("GRPOLoss", entropy_coef=0.05)
    old = shaken(fp32)
    out = fp32.forward_backward(inputs=BATCH, old_logps=old, advantages=ADVANTAGES)
    expected = grpo_by_hand(reference, old)
    assert out["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert_gradients_equal(fp32, reference, expected)


def test_dpo_trains_as_autograd_says(fp32, reference):
    fp32.set_loss(DPOLoss, beta=0.2, sft_weight=0.3)
    rows = shaken(fp32)
    out = fp32.forward_backward(inputs=BATCH, ref_logps=rows)
    logps = [logps_of(reference, f) for f in BATCH]
    gains = [p.sum() - sum(r) for p, r in zip(logps, rows, strict=True)]
    margins = torch.stack([gains[0] - gains[1], gains[2] - gains[3]])
    expected = -torch.nn.functional.logsigmoid(0.2 * margins).mean()
    expected = expected - 0.3 * torch.cat([logps[0], logps[2]]).mean()
    assert out["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert_gradients_equal(fp32, reference, expected)


LOSSES = {  # the engine's: the loss, its arguments
    "sum": (CrossEntropyLoss(), {}),
    "policy": (GRPOLoss(entropy_coef=0.05), {"advantages": ADVANTAGES}),
    "of sequences": (GSPOLoss(beta=0.1), {"advantages": ADVANTAGES, "ref_logps": [-2.0] * 4}),
    "divided": (CISPOLoss(), {"advantages": ADVANTAGES, "num_items_in_batch": 7}),
    "reference": (DPOLoss(sft_weight=0.2), {"ref_logps": [[-2.0] * n for n in COUNTS]}),
    "sums": (DPOLoss(), {"ref_chosen_logps": [-9.0, -8.0], "ref_rejected_logps": [-9.5, -7.0]}),
    "no reference": (SimPOLoss(gamma=0.2), {}),
    "single": (KTOLoss(), {"desirable": [True, None, False, None], "ref_logps": [-2.0] * 4}),
    "teacher": (OPSDLoss(), {"teacher_logps": [-2.0] * 4}),
}


def halved(loss):
    """A loss of a user's own, of the same kind."""

    class Halved(type(loss)):
        def __call__(self, inputs, outputs, **kwargs):
            return {"loss": super().__call__(inputs, outputs, **kwargs)["loss"] / 2}

    own = Halved()
    own.__dict__.update(loss.__dict__)
    return own


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_the_engine_takes_one_pass_and_a_subclass_with_its_own_call_is_that_call(
    fp32, name
):
    loss, kwargs = LOSSES[name]
    passes = lambda: fp32.engine.stats()["num_passes"]  # noqa: E731
    fp32.set_loss(loss)
    before = passes()
    out = fp32.forward_backward(inputs=BATCH, **kwargs)
    assert passes() == before + 1
    expected = gradients(fp32)
    fp32.zero_grad()
    fp32.set_loss(halved(loss))
    own = fp32.forward_backward(inputs=BATCH, **kwargs)
    assert passes() == before + 3
    assert own["loss"] == pytest.approx(out["loss"] / 2, rel=1e-6)
    for n, grad in gradients(fp32).items():
        np.testing.assert_allclose(grad, expected[n] / 2, rtol=1e-3, atol=1e-7, err_msg=n)


def test_gkd_trains_as_autograd_says(fp32, reference):
    fp32.set_loss(GKDLoss(beta=0.5, temperature=0.8, chunk_size=5))
    torch.manual_seed(0)
    teacher = torch.randn(4, 17, fp32.model_info["vocab_size"])
    out = fp32.forward_backward(inputs=BATCH, teacher_logits=teacher)
    total = 0
    for feature, rows in zip(BATCH, teacher, strict=True):
        kept = torch.as_tensor(feature["labels"]) != -100
        s = torch.softmax(logits_of(reference, feature)[0] / 0.8, -1)
        t = torch.softmax(rows[: len(kept)][kept] / 0.8, -1)
        m = (s + t) / 2
        total = total + 0.5 * ((t * (t / m).log()).sum() + (s * (s / m).log()).sum())
    expected = total / sum(COUNTS)
    assert out["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert_gradients_equal(fp32, reference, expected)


def test_infonce_trains_as_autograd_says(fp32, reference):
    """One label for each sequence, as scripts write them, of groups of unequal sizes."""
    fp32.set_loss("InfonceLoss", temperature=0.5)
    out = fp32.forward_backward(inputs=MARKED, task="embedding")
    states = torch.stack(
        [reference.model(torch.as_tensor(f["input_ids"])[None])[0][0, -1] for f in MARKED]
    )
    x = torch.nn.functional.normalize(states, dim=1)
    scores = x[[0, 2]] @ x[[1, 3, 4]].T / 0.5
    expected = torch.nn.functional.cross_entropy(scores, torch.tensor([0, 1]))
    assert out["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert_gradients_equal(fp32, reference, expected)


def test_infonce_without_its_task_or_labels_is_named(fp32):
    fp32.set_loss(InfonceLoss)
    with pytest.raises(InvalidError, match=r"InfonceLoss reads outputs\['embeddings'\].*task='em"):
        fp32.forward_backward(inputs=drawn([8, 12]))
    unmarked = [{"input_ids": [1, 2, 3]}] * 2
    with pytest.raises(InvalidError, match="InfonceLoss needs one label for each sequence"):
        fp32.forward_backward(inputs=unmarked, task="embedding")
    assert fp32._group().accumulated == 0


@pytest.mark.parametrize(
    ("loss", "kwargs", "text"),
    [
        ("GRPOLoss", {}, "GRPOLoss needs advantages"),
        ("GRPOLoss", {"advantage": [1] * 4}, "GRPOLoss: unknown argument 'advantage'; it takes ad"),
        ("GRPOLoss", {"advantages": [1] * 3}, "advantages has 3 entries for 4 sequences"),
        ("DPOLoss", {}, "DPOLoss needs a reference"),
        ("GKDLoss", {}, "GKDLoss needs a teacher"),
        ("OPSDLoss", {}, "OPSDLoss needs a teacher"),
        ("KTOLoss", {"ref_logps": [-2.0] * 4}, "KTOLoss needs desirable, .* for 4 sequences it is"),
        (
            "KTOLoss",
            {"ref_logps": [-2.0] * 4, "desirable": [True] * 4},
            "needs replies to other prompts, .* or set baseline='zero'",
        ),
        ("MSELoss", {}, "MSELoss compares logits of shape"),
    ],
)
def test_what_a_call_lacks_is_named_and_accumulates_nothing(fp32, loss, kwargs, text):
    fp32.set_loss(loss)
    with pytest.raises(InvalidError, match=text):
        fp32.forward_backward(inputs=BATCH, **kwargs)
    assert fp32._group().accumulated == 0


def test_labels_of_no_weight_do_not_learn(fp32, reference):
    """The engine drops their gradients: the loss must not count them either."""
    fp32.set_loss("BNPOLoss")
    scale = [np.ones(len(f["labels"])) for f in BATCH]
    scale[1][10:14] = 0
    batch = [{**f, "loss_scale": s} for f, s in zip(BATCH, scale, strict=True)]
    fp32.forward_backward(inputs=batch, advantages=ADVANTAGES)
    total = 0
    for f, s, a in zip(BATCH, scale, ADVANTAGES, strict=True):
        kept = torch.as_tensor(s)[torch.as_tensor(f["labels"]) != -100] != 0
        total = total - a * logps_of(reference, f)[kept].sum()
    assert_gradients_equal(fp32, reference, total / (sum(COUNTS) - 4))


@pytest.mark.parametrize(
    ("loss", "kwargs"),
    [
        (GRPOLoss(), {"old_logps": [[-2.0] * n for n in COUNTS], "advantages": ADVANTAGES}),
        ("BNPOLoss", {"advantages": np.array(ADVANTAGES)}),
        (DPOLoss(), {"ref_logps": [-2.0, -3.0, -2.5, -1.0]}),
        ("ORPOLoss", {}),
    ],
)
@pytest.mark.parametrize("size", [1, 3])
def test_micro_batches_leave_value_and_gradient_as_they_are(fp32, loss, kwargs, size):
    """Means over a batch, and pairs, are not those of its parts: a loss of ours sees it whole."""
    fp32.set_loss(loss)
    whole = fp32.forward_backward(inputs=BATCH, **kwargs)["loss"]
    expected = gradients(fp32)
    fp32.zero_grad()
    parts = fp32.forward_backward(inputs=BATCH, micro_batch_size=size, **kwargs)["loss"]
    assert parts == whole
    for name, grad in gradients(fp32).items():
        assert np.array_equal(grad, expected[name]), name


def test_accumulated_calls_of_equal_size_are_one_of_all(fp32):
    fp32.set_loss(GRPOLoss)
    fp32.set_optimizer("SGD", lr=1.0, weight_decay=0.0)
    before = fp32.get_state_dict()
    fp32.forward_backward(inputs=BATCH, advantages=ADVANTAGES)
    norm = fp32.clip_grad_norm(max_grad_norm=0)
    fp32.zero_grad()
    fp32.set_loss(GRPOLoss)
    for part in (slice(0, 2), slice(2, 4)):
        fp32.forward_backward(inputs=BATCH[part], advantages=ADVANTAGES[part])
        stepped = fp32.clip_grad_and_step(max_grad_norm=0, gradient_accumulation_steps=2)
    assert stepped == pytest.approx(norm, rel=1e-5)
    assert any(not torch.equal(before[n], w) for n, w in fp32.get_state_dict().items())


def test_calculate_loss_and_backward_do_what_forward_backward_does(fp32):
    fp32.set_loss(DPOLoss, beta=0.3)
    refs = fp32.forward_only(inputs=BATCH)
    refs["logps"] = refs["logps"] - 0.1
    whole = fp32.forward_backward(inputs=BATCH, ref_outputs=refs)["loss"]
    expected = gradients(fp32)
    fp32.zero_grad()
    fp32.forward(inputs=BATCH)
    assert fp32.calculate_loss(ref_outputs=refs) == pytest.approx(whole)
    fp32.backward()
    for name, grad in gradients(fp32).items():
        np.testing.assert_allclose(grad, expected[name], rtol=1e-4, atol=1e-7, err_msg=name)
    with pytest.raises(InvalidError, match="DPOLoss needs a reference"):
        fp32.forward(inputs=BATCH)
        fp32.calculate_loss()


def adapted(tiny_llama_dir, loss, lr=2e-2, **options):
    """A model in bf16 with a fresh adapter, whose policy is that of the base model."""
    model = TransformersModel(model_id=tiny_llama_dir)
    model.add_adapter_to_model("default", LoraConfig(r=8, target_modules="all-linear"))
    model.set_loss(loss, **options)
    model.set_optimizer("AdamW", lr=lr, weight_decay=0.0)
    return model


def sums(model):
    return model.forward_only(inputs=BATCH)["logps"].sum(-1)


def old_of(model):
    """As a sampler gives them: of the replies' tokens alone."""
    logps = model.forward_only(inputs=BATCH)["logps"].numpy()
    return [
        row[: len(f["labels"])][f["labels"] != -100].tolist()
        for row, f in zip(logps, BATCH, strict=True)
    ]


@pytest.mark.parametrize(
    "name",
    ["GRPOLoss", "PPOLoss", "GSPOLoss", "SAPOLoss", "CISPOLoss", "BNPOLoss", "DRGRPOLoss"],
)
def test_a_policy_comes_to_prefer_what_had_positive_advantages(tiny_llama_dir, name):
    model = adapted(tiny_llama_dir, name)
    before = sums(model)
    for _ in range(4):
        model.forward_backward(inputs=BATCH, old_logps=old_of(model), advantages=ADVANTAGES)
        model.clip_grad_and_step()
    gained = sums(model) - before
    for gain, advantage in zip(gained.tolist(), ADVANTAGES, strict=True):
        if abs(advantage) >= 1:
            assert math.copysign(1, gain) == math.copysign(1, advantage), gained
    assert gained @ torch.tensor(ADVANTAGES) > 0


@pytest.mark.parametrize("name", ["DPOLoss", "SimPOLoss", "CPOLoss", "ORPOLoss"])
def test_a_model_comes_to_prefer_the_chosen_replies(tiny_llama_dir, name):
    model = adapted(tiny_llama_dir, name)
    model.add_metric("DPOMetric", is_training=True, beta=0.1)
    before, seen = sums(model), []
    for _ in range(4):
        refs = model.forward_only(inputs=BATCH, disable_lora=True)
        out = model.forward_backward(inputs=BATCH, ref_outputs=refs, micro_batch_size=1)
        model.clip_grad_and_step()
        seen.append(model.calculate_metric(is_training=True))
    gained = (sums(model) - before).tolist()
    assert gained[0] > gained[1] and gained[2] > gained[3]
    assert seen[0]["rewards/margins"] == pytest.approx(0, abs=1e-6)
    assert seen[0]["logps/chosen"] == pytest.approx(float(before[::2].mean()), rel=1e-5)
    assert seen[-1]["rewards/margins"] > seen[1]["rewards/margins"] > 0
    assert seen[-1]["rewards/accuracies"] == 100
    assert seen[-1]["loss"] == pytest.approx(out["loss"]) and out["loss"] < seen[0]["loss"]
    if name == "DPOLoss":
        assert seen[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_a_student_comes_nearer_to_its_teacher(tiny_llama_dir):
    model = adapted(tiny_llama_dir, GKDLoss)
    torch.manual_seed(1)
    teacher = torch.randn(4, 17, model.model_info["vocab_size"])
    losses = []
    for _ in range(5):
        losses.append(model.forward_backward(inputs=BATCH, teacher_logits=teacher)["loss"])
        model.clip_grad_and_step()
    assert sorted(losses, reverse=True) == losses and losses[-1] < 0.98 * losses[0]
    model.forward_only(inputs=BATCH, return_logits=True)
    assert model.calculate_loss(teacher_logits=teacher) < losses[-1]


def test_positives_come_nearer_and_the_metric_sees_it(tiny_llama_dir):
    model = adapted(tiny_llama_dir, "InfonceLoss", temperature=0.2)
    model.add_metric("EmbeddingMetric", is_training=True)
    seen = []
    for _ in range(5):
        out = model.forward_backward(inputs=MARKED, task="embedding")
        model.clip_grad_and_step()
        seen.append(model.calculate_metric(is_training=True))
        assert seen[-1]["loss"] == pytest.approx(out["loss"])
    assert seen[-1]["loss"] < seen[0]["loss"]
    first, last = (m["pos_sim"] - m["neg_sim"] for m in (seen[0], seen[-1]))
    assert last > first and seen[0]["pos_sim_min"] <= seen[0]["pos_sim"] <= seen[0]["pos_sim_max"]
    assert seen[0]["grad_norm"] > 0


def test_policy_metrics_see_what_the_loss_was_called_with(tiny_llama_dir):
    model = adapted(tiny_llama_dir, "GRPOLoss", entropy_coef=1e-3)
    model.add_metric("GRPOMetric", is_training=True, top_k_kl=2)
    old = old_of(model)
    for steps in range(2):
        model.forward_backward(inputs=BATCH, old_logps=old, advantages=ADVANTAGES)
        model.clip_grad_and_step()
        seen = model.calculate_metric(is_training=True)
        assert seen["train/entropy"] > 0
        if steps == 0:
            mean = np.mean(np.concatenate(old))
            assert seen["train/mean_new_logp"] == pytest.approx(mean, rel=1e-6)
            assert seen["train/approx_kl"] == pytest.approx(0, abs=1e-9)
            assert seen["train/clip_ratio"] == 0
    assert seen["train/approx_kl"] > 0 and seen["train/token_ratio_max"] > 1
    assert len(seen["_high_kl_records"]) == 2


def test_metrics_of_evaluation_see_what_calculate_loss_was_called_with(tiny_llama_dir):
    model = adapted(tiny_llama_dir, "DPOLoss")
    model.add_metric("DPOMetric", is_training=False, beta=0.1)
    refs = model.forward_only(inputs=BATCH)
    model.forward_only(inputs=BATCH)
    assert model.calculate_loss(ref_outputs=refs) == pytest.approx(math.log(2))
    seen = model.calculate_metric(is_training=False)
    assert seen["rewards/margins"] == 0
    assert seen["logps/ref_chosen"] == pytest.approx(float(sums(model)[::2].mean()), rel=1e-6)


def test_a_sampled_reply_trains_with_the_samplers_log_probabilities(tiny_llama_dir):
    """The seeds' loop: the new_input_feature of a reply, and a log-probability for each of its
    tokens. An adapter that has not learned is the base model that sampled: the ratio is 1 up to
    rounding."""
    from twinkle.sampler import TorchSampler

    model = adapted(tiny_llama_dir, "GRPOLoss", epsilon=0.2)
    model.add_metric("GRPOMetric", is_training=True)
    sampler = TorchSampler(model_id=tiny_llama_dir)
    sampler.set_template("Template", model_id=tiny_llama_dir)
    prompts = [{"messages": [{"role": "user", "content": text}]} for text in ("one", "two twos")]
    responses = sampler.sample(
        prompts, {"max_tokens": 7, "num_samples": 2, "logprobs": 1, "temperature": 1.0, "seed": 3}
    )
    replies = [s for response in responses for s in response.sequences]
    old = [[entry[0][1] for entry in s.logprobs] for s in replies]
    model.forward_backward(
        inputs=[s.new_input_feature for s in replies], old_logps=old, advantages=[1, -1, 0.5, -0.5]
    )
    seen = model.calculate_metric(is_training=True)
    assert seen["train/token_ratio_max"] == pytest.approx(1, abs=0.05)
    expected = np.mean(np.concatenate(old))
    assert seen["train/mean_old_logp"] == pytest.approx(expected, rel=1e-6)


CROSS_ENTROPIES = [
    (ChunkedCrossEntropyLoss(chunk_size=3), CrossEntropyLoss(reduction="mean")),
    (ChunkedCrossEntropyLoss(64, reduction="sum", dft=True), CrossEntropyLoss(dft=True)),
    (LigerFusedLinearCrossEntropyLoss(), CrossEntropyLoss()),
    (LigerFusedLinearCrossEntropyLoss(reduction="mean"), CrossEntropyLoss(reduction="mean")),
]


@pytest.mark.parametrize(("loss", "plain"), CROSS_ENTROPIES)
def test_other_names_of_cross_entropy_have_its_numbers(fp32, loss, plain):
    fp32.set_loss(plain)
    expected = fp32.forward_backward(inputs=BATCH)["loss"]
    grads = gradients(fp32)
    fp32.zero_grad()
    fp32.set_loss(loss)
    assert fp32.forward_backward(inputs=BATCH, task="fused_lm_ce")["loss"] == expected
    assert all(np.array_equal(grad, grads[name]) for name, grad in gradients(fp32).items())


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ChunkedCrossEntropyLoss(0), InvalidError, "chunk_size is 0, it must be"),
        (lambda: ChunkedCrossEntropyLoss(8, ignore_index=0), InvalidError, "ignore_index is 0"),
        (
            lambda: LigerFusedLinearCrossEntropyLoss(label_smoothing=0.1),
            NotAvailableError,
            "label_smoothing is 0.1, which LigerFused.* does not have in this version: leave it",
        ),
        (
            lambda: LigerFusedLinearCrossEntropyLoss(softcap=30.0),
            NotAvailableError,
            "softcap is 30.0, which LigerFused.* does not have",
        ),
        (
            lambda: LigerFusedLinearCrossEntropyLoss(reduction="none"),
            InvalidError,
            "reduction is 'none'",
        ),
    ],
)
def test_an_option_of_cross_entropy_that_it_cannot_honour_is_named(make, error, text):
    with pytest.raises(error, match=text):
        make()
