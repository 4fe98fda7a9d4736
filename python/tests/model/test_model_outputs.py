"""return_logits and task='embedding' on the compiled engine, against transformers."""

import pytest
import torch
from features import drawn

from twinkle import InvalidError, LoraConfig
from twinkle.engine import Engine
from twinkle.loss import Loss
from twinkle.model import TransformersModel

pytestmark = pytest.mark.usefixtures("engine_built")

BATCH = drawn([5, 17, 9, 11])


@pytest.fixture
def fp32(tiny_llama_dir):
    return TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")


@pytest.fixture
def reference(tiny_llama_dir):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)


def logits_of(reference, feature):
    with torch.no_grad():
        return reference(torch.as_tensor(feature["input_ids"])[None]).logits[0]


def embeddings_of(reference, batch):
    rows = [
        reference.model(torch.as_tensor(f["input_ids"])[None]).last_hidden_state[0, -1]
        for f in batch
    ]
    return torch.nn.functional.normalize(torch.stack(rows), dim=-1)


@pytest.mark.parametrize("method", ["forward", "forward_only", "forward_backward"])
def test_logits_are_those_of_transformers(fp32, reference, method):
    out = getattr(fp32, method)(inputs=BATCH, return_logits=True)
    vocabulary = fp32.model_info["vocab_size"]
    assert out["logits"].shape == (4, 17, vocabulary) and out["logits"].dtype == torch.float32
    for row, feature in enumerate(BATCH):
        length = len(feature["input_ids"])
        torch.testing.assert_close(
            out["logits"][row, :length], logits_of(reference, feature), rtol=0, atol=1e-4
        )
        assert not out["logits"][row, length:].any()
    assert "logits" not in getattr(fp32, method)(inputs=BATCH)


def test_logits_are_divided_by_the_temperature_and_skip_masked_tokens(fp32):
    plain = fp32.forward_only(inputs=BATCH[:1], return_logits=True)["logits"]
    half = fp32.forward_only(inputs=BATCH[:1], return_logits=True, temperature=2.0)["logits"]
    torch.testing.assert_close(half * 2, plain)
    ids = list(BATCH[0]["input_ids"])
    masked = {"input_ids": [0, *ids], "attention_mask": [0] + [1] * len(ids)}
    out = fp32.forward_only(inputs=[masked], return_logits=True)["logits"]
    assert torch.equal(out[:, 1:], plain) and not out[:, 0].any()


def test_embeddings_are_the_last_tokens_state_of_norm_1(fp32, reference):
    out = fp32.forward_only(inputs=BATCH, task="embedding")
    with torch.no_grad():
        expected = embeddings_of(reference, BATCH)
    torch.testing.assert_close(out["embeddings"], expected, rtol=0, atol=1e-5)
    assert "logps" not in out and out["loss"] is None
    padded = [{**BATCH[0], "attention_mask": [1] * 5 + [0] * 2}]
    padded[0]["input_ids"] = [*BATCH[0]["input_ids"], 0, 0]
    padded[0]["labels"] = [-100] * 7
    last = fp32.forward_only(inputs=padded, task="embedding")["embeddings"]
    assert torch.equal(last, out["embeddings"][:1]), "the last token that counts"


class Distill(Loss):
    """The reverse of a teacher's cross entropy, and some of the labels' own."""

    require_logits = True

    def __call__(self, inputs, outputs, share=0.5):
        scored = inputs["labels"] != -100
        logits = outputs["logits"][scored]
        teacher = torch.linspace(-1, 1, logits.shape[-1]).softmax(-1)
        away = (logits.softmax(-1) * (logits.log_softmax(-1) - teacher.log())).sum()
        return {"loss": away - share * outputs["logps"].sum(), "num_tokens": int(scored.sum())}


def distilled(reference, batch, temperature):
    """The same loss by transformers alone."""
    total = 0
    for feature in batch:
        logits = reference(torch.as_tensor(feature["input_ids"])[None]).logits / temperature
        labels = torch.as_tensor(feature["labels"])[None]
        logps = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        outputs = {"logits": logits, "logps": torch.where(labels != -100, logps, 0.0)}
        total = total + Distill()({"labels": labels}, outputs)["loss"]
    return total


@pytest.mark.parametrize("full", [True, False])
def test_training_through_logits_equals_transformers(fp32, reference, full):
    """All weights; and an adapter, whose second step begins where B is not zero."""
    peft = pytest.importorskip("peft")
    fields = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
    if not full:
        fp32.add_adapter_to_model("me", LoraConfig(**fields))
        reference = peft.get_peft_model(reference, peft.LoraConfig(**fields))
        ours = fp32.get_state_dict()
        with torch.no_grad():
            for name, value in reference.named_parameters():
                if "lora_" in name:
                    value.copy_(
                        ours[name.removeprefix("base_model.model.").replace(".default", "")]
                    )
    fp32.set_loss(Distill)
    fp32.set_optimizer("SGD", lr=1e-2, weight_decay=0.0)
    learned = [p for p in reference.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(learned, lr=1e-2)
    for step in range(3):
        batch = drawn([8, 12, 3], seed=step)
        expected = distilled(reference, batch, 0.7)
        count = sum(int((torch.as_tensor(f["labels"]) != -100).sum()) for f in batch)
        (expected / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        out = fp32.forward_backward(inputs=batch, temperature=0.7)
        assert out["loss"] == pytest.approx(expected.item(), rel=1e-4)
        assert "logits" not in out and out["num_tokens"] == count
        assert out["logps"].shape == (3, 12) and out["logps"].any()
        assert fp32.clip_grad_and_step() == pytest.approx(float(norm), rel=1e-3)


class InBatch(Loss):
    """Rows come as anchor, positive, anchor, positive, ...: cross entropy over the batch."""

    require_logps = False

    def __call__(self, inputs, outputs, temperature=0.1):
        assert inputs["input_ids"].shape[0] == len(outputs["embeddings"])
        anchors, others = outputs["embeddings"][::2], outputs["embeddings"][1::2]
        scores = anchors @ others.T / temperature
        return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))


def test_training_on_embeddings_equals_transformers(fp32, reference):
    fp32.set_loss(InBatch)
    fp32.set_optimizer("SGD", lr=1e-2, weight_decay=0.0)
    optimizer = torch.optim.SGD(reference.parameters(), lr=1e-2)
    for step in range(3):
        batch = drawn([8, 12, 3, 7], seed=step)
        expected = InBatch()(
            {"input_ids": torch.zeros(4, 1)}, {"embeddings": embeddings_of(reference, batch)}
        )
        expected.backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        out = fp32.forward_backward(inputs=batch, task="embedding")
        assert out["loss"] == pytest.approx(expected.item(), rel=1e-4)
        assert out["embeddings"].shape[0] == 4
        assert fp32.clip_grad_and_step() == pytest.approx(float(norm), rel=1e-3)


def test_a_loss_that_needs_logits_is_set_before_the_forward_and_bounded(fp32):
    fp32.forward(inputs=BATCH)
    fp32.set_loss(Distill)
    with pytest.raises(InvalidError, match="Distill has require_logits, but was set after the"):
        fp32.calculate_loss()
    count = (1 << 30) // (64 * fp32.model_info["vocab_size"] * 4) + 1
    batch = [{"input_ids": [1] * 64, "labels": [1] * 64}] * count
    for method in (fp32.forward, fp32.forward_only, fp32.forward_backward):
        with pytest.raises(InvalidError, match=r"^model: require_logits: logits of .* 1025 MiB"):
            method(inputs=batch)
    with pytest.raises(InvalidError, match="Distill has require_logps and require_logits, but"):
        fp32.forward_backward(inputs=BATCH, task="embedding")


def test_a_loss_that_was_set_between_is_noticed(fp32):
    fp32.set_loss(Distill)
    fp32.forward(inputs=BATCH)
    fp32.set_loss("CrossEntropyLoss")
    value = fp32.calculate_loss()  # it needs less than Distill
    assert value == pytest.approx(fp32.forward_backward(inputs=BATCH)["loss"], rel=1e-5)
    fp32.forward(inputs=BATCH)
    fp32.calculate_loss()
    fp32.set_loss(Distill)
    with pytest.raises(InvalidError, match=r"^model: the loss was set anew after calculate_loss"):
        fp32.backward()


class Careful(Distill):
    """Reads what may not be there as one does."""

    def __call__(self, inputs, outputs):
        assert "logps" in outputs and outputs.get("values") is None
        assert outputs.get("logps").requires_grad and "colour" not in outputs
        return super().__call__(inputs, outputs)


def test_what_is_computed_from_logits_is_found_by_any_way_of_reading(fp32):
    values = []
    for loss in (Distill, Careful):
        fp32.set_loss(loss)
        values.append(fp32.forward_backward(inputs=BATCH)["loss"])
    assert values[0] == values[1]


class OfLogits(Loss):
    def __call__(self, inputs, outputs):
        return outputs["logits"].logsumexp(-1).sum()


def test_a_loss_without_require_logits_sees_them_in_evaluation_alone(fp32, reference):
    fp32.set_loss(OfLogits)
    fp32.forward_only(inputs=BATCH[:1], return_logits=True)
    expected = logits_of(reference, BATCH[0]).logsumexp(-1).sum()
    assert fp32.calculate_loss() == pytest.approx(expected.item(), rel=1e-5)
    text = r"^loss: OfLogits reads outputs\['logits'\], .*return_logits=True"
    with pytest.raises(InvalidError, match=text):
        fp32.forward_backward(inputs=BATCH, return_logits=True)
    assert "logits" in fp32.forward(inputs=BATCH, return_logits=True)
    with pytest.raises(InvalidError, match=text):
        fp32.calculate_loss()
    with pytest.raises(InvalidError, match="backward needs forward and calculate_loss"):
        fp32.backward()
    with pytest.raises(InvalidError, match="step needs a backward"):
        fp32.step()


@pytest.mark.parametrize(("loss", "task"), [(InBatch, "embedding"), (Distill, "causal_lm")])
def test_the_three_methods_are_one_forward_backward(tiny_llama_dir, loss, task):
    states = []
    for together in (True, False):
        model = TransformersModel(model_id=tiny_llama_dir)
        model.add_adapter_to_model("me", LoraConfig(r=4, target_modules="all-linear"))
        model.set_loss(loss)
        if together:
            model.forward_backward(inputs=BATCH, task=task)
        else:
            model.forward(inputs=BATCH, task=task)
            model.calculate_loss()
            model.backward()
        states.append(model.engine.inspect(tenant=model._group().tenant).result())
    assert states[0] == states[1] and states[0]["gradients"] != 0


def test_what_a_task_does_not_give_is_said_before_anything_is_computed(fp32):
    before = fp32.engine.inspect(tenant=fp32._tenant(fp32._group()), tensors=False).result()
    for kwargs, text in (
        ({"task": "embedding"}, "^loss: CrossEntropyLoss has require_logps, but task='embedding'"),
        ({"task": "embedding", "return_logits": True}, "^loss: CrossEntropyLoss has require_logps"),
        ({"task": "translation"}, "^model: task is 'translation', it must be 'causal_lm', "),
        ({"task": ["embedding"]}, "^model: task is "),
        ({"return_logits": "yes"}, "^model: return_logits is 'yes', it must be True or False"),
    ):
        with pytest.raises(InvalidError, match=text):
            fp32.forward_backward(inputs=BATCH, **kwargs)
    plain = fp32.forward_only(inputs=BATCH, task="embedding")
    asked = fp32.forward_only(inputs=BATCH, task="embedding", return_logits=True)
    assert "logits" not in asked and torch.equal(asked["embeddings"], plain["embeddings"])
    with pytest.raises(InvalidError, match=r"^loss: CrossEntropyLoss has require_logps"):
        fp32.calculate_loss()
    assert fp32.engine.inspect(tenant=fp32._group().tenant).result() == before


def test_too_many_logits_are_refused_with_their_size(fp32):
    vocabulary = fp32.model_info["vocab_size"]
    count = (1 << 30) // (64 * vocabulary * 4) + 1
    alike = [{"input_ids": [1] * 64}] * count
    padded = [{"input_ids": [1] * 64}] + [{"input_ids": [1]}] * (count - 1)
    for method in (fp32.forward, fp32.forward_only, fp32.forward_backward):
        for batch in (alike, padded):
            with pytest.raises(
                InvalidError,
                match=rf"^model: return_logits: logits of {count} x 64 positions and a vocabulary "
                rf"of {vocabulary} take 1025 MiB, at most 1024 are given; pass fewer",
            ):
                method(inputs=batch, return_logits=True)
    engine = fp32.engine
    with pytest.raises(InvalidError, match=r"take 1025 MiB, one operation may take 1024; pass"):
        engine.forward(tenant=fp32.frozen_tenant(), sequences=alike, logits=True)


def test_a_tenant_gets_logits_and_embeddings_and_learns_through_these(tiny_llama_dir, reference):
    engine = Engine(tiny_llama_dir, mixed_precision="no")
    me = engine.tenant("me", LoraConfig(r=4, target_modules="all-linear"))
    result = me.forward(BATCH, logits=True, embedding=True).result()
    assert [row.shape[0] for row in result.logits] == [5, 17, 9, 11]
    torch.testing.assert_close(
        torch.as_tensor(result.logits[2]), logits_of(reference, BATCH[2]), rtol=0, atol=1e-4
    )
    grads = [row * 0.5 + 1 for row in result.embeddings]
    rows = [{"input_ids": f["input_ids"]} for f in BATCH]
    learned = me.forward_backward(rows, "LinearLoss", embedding_grad=grads, num_tokens=4).result()
    expected = sum(float(g @ e) for g, e in zip(grads, result.embeddings, strict=True))
    assert learned.loss == pytest.approx(expected, rel=1e-5) and learned.num_tokens == 4
    assert (learned.embeddings[0] == result.embeddings[0]).all()
    me.step("SGD", lr=1e-3).result()
    after = me.forward(rows, embedding=True).result().embeddings
    assert sum(float(g @ e) for g, e in zip(grads, after, strict=True)) < expected
    for wrong, text in (
        (grads[:2], "^engine: embedding_grad has 2 entries for 4 inputs"),
        (7, "^engine: embedding_grad is 7, it must be a list with an array for each input"),
        ([[1.0, 2.0]] * 4, "^engine: sequence 0: embedding_grad has 2 entries, the model's hidden"),
        ([["a"]] * 4, "^engine: sequence 0: embedding_grad must be numbers"),
    ):
        with pytest.raises(InvalidError, match=text):
            me.forward_backward(rows, "LinearLoss", embedding_grad=wrong)
    labelled = me.forward_backward(BATCH, "LinearLoss", embedding_grad=grads).result()
    assert (labelled.embeddings[0] == after[0]).all() and labelled.num_tokens == 1
    assert not any(row.any() for row in labelled.logps), "labels count with a grad alone"
    both = me.forward_backward(
        BATCH, "LinearLoss", embedding_grad=grads, grad=[row * 0 + 1 for row in result.logps]
    ).result()
    scored = sum(float(row.sum()) for row in both.logps)
    assert both.loss == pytest.approx(labelled.loss + scored, rel=1e-5)
    me.zero_grad().result()
    weights = [torch.linspace(-1, 1, row.size).reshape(row.shape).numpy() for row in result.logits]
    now = me.forward(BATCH, logits=True).result().logits
    assert "logits" not in me.forward_backward(BATCH, "LinearLoss", logits_grad=weights).result()
    learned = me.forward_backward(BATCH, "LinearLoss", logits_grad=weights, logits=True).result()
    expected = sum(float((w * row).sum()) for w, row in zip(weights, now, strict=True))
    assert learned.loss == pytest.approx(expected, rel=1e-4)
    assert (learned.logits[1] == now[1]).all() and me.inspect().result().gradients
    turned = [w.T for w in weights]
    per_label = [row * 0 for row in result.logps]
    for wrong, text in (
        ({"logits_grad": [[1.0, 2.0]] * 4}, r"logits_grad of inputs\[0\] has shape \[2\], it must"),
        ({"logits_grad": turned}, r"logits_grad of inputs\[0\] has shape .*, it must be \[5, "),
        ({"logits_grad": [w[:, :3] for w in weights]}, "sequence 0: logits_grad has 15 entries"),
        ({"logits_grad": weights, "grad": per_label}, "grad of labels cannot go with logits_grad"),
        ({"embedding_grad": grads, "entropy_grad": per_label}, "entropy_grad of labels cannot go "),
    ):
        with pytest.raises(InvalidError, match=f"^engine: {text}"):
            me.forward_backward(BATCH, "LinearLoss", **wrong).result()
    with pytest.raises(InvalidError, match=r"^engine: logits is 1, it must be True or False"):
        me.forward(BATCH, logits=1)
