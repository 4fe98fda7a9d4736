"""Training through tenants and futures of the compiled engine."""

import threading

import numpy as np
import pytest
from engine_batches import BATCH, LORA
from features import drawn

from twinkle import ConflictError, InvalidError, LoraConfig
from twinkle.engine import Engine
from twinkle.model import MultiLoraTransformersModel, TransformersModel
from twinkle.sampler import TorchSampler

pytestmark = pytest.mark.usefixtures("engine_built")


def test_training_lowers_the_loss_and_every_result_is_a_future_of_what_it_says(tenant):
    losses = []
    for _ in range(4):
        future = tenant.forward_backward(BATCH)
        result = future.result(timeout=60)
        assert future.done() and future.result() == result
        assert result["loss"] == result.loss
        assert result.num_tokens == sum((f["labels"] != -100).sum() for f in BATCH)
        assert [row.shape for row in result.logps] == [(5,), (17,), (9,)]
        assert all(row.dtype == np.float32 for row in result.logps)
        assert result.loss == pytest.approx(-sum(row.sum() for row in result.logps), rel=1e-5)
        losses.append(result.loss)
        step = tenant.step("AdamW", max_grad_norm=1.0, lr=2e-3).result()
        assert step.step == len(losses) and step.grad_norm > 0
    assert losses[-1] < losses[0]


def test_a_result_is_the_same_object_of_the_engine_however_often_it_is_asked_for(tenant):
    future = tenant.forward(BATCH)
    first, second = future.result().logps, future.result().logps
    del future
    assert first[1] is second[1]
    assert first[1].flags.writeable and not first[1].flags.owndata  # no copy was made
    np.testing.assert_array_equal(first[1], tenant.logprobs(BATCH).result()[1])


def test_forward_scores_and_touches_nothing(tenant):
    before = tenant.inspect().result()
    result = tenant.forward(BATCH, entropy=True).result()
    assert result.loss is None and len(result.entropies) == 3
    assert (result.logps[0][BATCH[0]["labels"] == -100] == 0).all()
    assert tenant.inspect().result() == before
    with pytest.raises(AttributeError, match="the result has no 'logits'"):
        _ = result.logits


def test_forward_tells_a_loss_that_forward_backward_learns_from(tenant):
    given = {"advantages": [0.5, -1.0, 2.0], "epsilon": 0.1}
    told = tenant.forward(BATCH, loss="GRPOLoss", **given).result()
    assert told.loss == pytest.approx(-(0.5 - 1.0 + 2.0) / 3) and told.num_tokens == 1
    learned = tenant.forward_backward(BATCH, "GRPOLoss", **given).result()
    assert (learned.loss, learned.num_tokens) == (told.loss, told.num_tokens)
    with pytest.raises(InvalidError, match="forward without a loss: unknown argument 'advantages'"):
        tenant.forward(BATCH, advantages=[1, 2, 3])
    with pytest.raises(InvalidError, match="unknown loss 'grop'"):
        tenant.forward(BATCH, loss="grop").result()


def test_an_extra_of_a_sequence_is_one_number_for_itself(tenant):
    pairs = drawn([7, 9])
    counts = [int((f["labels"] != -100).sum()) for f in pairs]
    sums, each = [-5.0, -8.0], [-5.0 / counts[0], -8.0 / counts[1]]
    told = [
        tenant.forward(pairs, loss="DPOLoss", beta=0.3, **{name: given}).result().loss
        for name, given in (("ref_sums", sums), ("ref_logps", each))
    ]
    assert told[0] == pytest.approx(told[1], rel=1e-6)
    with pytest.raises(InvalidError, match=r"ref_sums of inputs\[0\] must be a number$"):
        tenant.forward_backward(pairs, "DPOLoss", ref_sums=[[-5.0], [-8.0]])


def test_positions_that_are_masked_are_dropped_and_rows_keep_their_length(tenant):
    ids, labels = np.arange(3, 9), np.arange(4, 10)
    mask = np.array([1, 1, 1, 1, 0, 0])
    masked = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    plain = {"input_ids": ids[:4], "labels": labels[:4]}
    (got,), (want,) = (
        tenant.forward_backward([f], "LinearLoss", grad=[g]).result().logps
        for f, g in ((masked, np.ones(6)), (plain, np.ones(4)))
    )
    np.testing.assert_array_equal(got[:4], want)
    assert (got[4:] == 0).all() and len(got) == 6


def test_extras_are_per_token_lists_or_options_of_the_loss(engine, tenant):
    def gradient(loss, **extras):
        tenant.forward_backward(BATCH, loss, **extras).result()
        out = tenant.inspect().result().gradients
        tenant.zero_grad().result()
        return out

    each = [np.full(len(f["input_ids"]), -1.0) for f in BATCH]
    want = gradient("CrossEntropyLoss")
    assert gradient("LinearLoss", grad=each, num_tokens=3) == want
    assert gradient("LinearLoss", grad=[-1.0] * 3) == want
    assert gradient("CrossEntropyLoss", reduction="mean") != want


def test_saved_and_loaded_a_tenant_goes_on_bit_for_bit(engine, tenant, tmp_path):
    tenant.forward_backward(BATCH).result()
    tenant.step(lr=0.01).result()
    tenant.forward_backward(BATCH).result()
    directory = tenant.save(tmp_path / "checkpoint", optimizer=True, extra="later").result()
    assert directory == str(tmp_path / "checkpoint")
    other = engine.tenant("other", directory)
    assert other.load(directory, optimizer=True).result() == "later"
    for each in (tenant, other):
        each.clip_grad_norm(0.5).result()
        each.step(lr=0.01).result()
    assert other.inspect().result() == tenant.inspect().result()
    other.delete().result()
    tensors = tenant.inspect(tensors=True).result().tensors
    assert any(name.endswith("lora_A.weight") for name in tensors)


def test_clipped_gradients_take_no_more_before_a_step_or_zero_grad(tenant):
    tenant.forward_backward(BATCH).result()
    tenant.clip_grad_norm(0.5).result()
    before = tenant.inspect().result()
    with pytest.raises(ConflictError, match=r"divided by their tokens and clipped .* zero_grad fi"):
        tenant.forward_backward(BATCH).result()
    assert tenant.inspect().result() == before
    tenant.step(lr=0.01).result()
    tenant.forward_backward(BATCH).result()
    tenant.zero_grad().result()


def test_one_tenant_at_a_time_may_train_all_weights(tiny_llama_dir):
    engine = Engine(tiny_llama_dir)
    full = engine.tenant("full", full_parameters=True)
    first = full.forward_backward(BATCH).result().loss
    full.step(lr=1e-2).result()
    assert full.forward_backward(BATCH).result().loss < first
    for config in (LORA, None):
        with pytest.raises(ConflictError, match="tenant 'full' trains all weights of"):
            engine.tenant("other", config)
    full.delete().result()
    frozen = engine.tenant("frozen")
    with pytest.raises(ConflictError, match="1 others use, 'frozen' among them; delete them fi"):
        engine.tenant("full", full_parameters=True)
    assert frozen.inspect().result().num_parameters == 0
    with pytest.raises(InvalidError, match="is the frozen base model; add an adapter"):
        frozen.forward_backward(BATCH).result()


def test_a_model_may_be_scored_before_all_its_weights_are_trained_and_its_base_not_after(
    tiny_llama_dir,
):
    model = TransformersModel(model_id=tiny_llama_dir)
    before = model.forward_only(inputs=BATCH)["logps"]
    model.set_optimizer("AdamW", lr=0.01)
    model.forward_backward(inputs=BATCH)
    model.clip_grad_and_step()
    assert (model.forward_only(inputs=BATCH)["logps"] != before).any()
    sampler, prompt = TorchSampler(model=model), {"input_ids": [5]}
    assert sampler.sample(prompt, {"max_tokens": 1})[0].sequences[0].tokens
    with pytest.raises(ConflictError, match="tenant 'full' trains all weights"):
        sampler.sample(prompt, {"max_tokens": 1}, use_base_model=True)


def test_neighbours_change_no_bit(tiny_llama_dir):
    def train(engine, name, crowd):
        me = engine.tenant(name, LORA, seed=1)
        others = [engine.tenant(f"other {i}", {"r": 2 + i}, seed=i) for i in range(crowd)]
        futures = []
        for step in range(3):
            for i, other in enumerate(others):
                futures.append(other.forward_backward(drawn([7 + i, 30], seed=step)))
                futures.append(other.step("SGD", lr=0.1))
            futures.append(me.forward_backward(drawn([12, 5, 20], seed=step)))
            futures.append(me.step(lr=0.01, max_grad_norm=0.5))
        for future in futures:
            future.result()
        return me.inspect().result()

    alone = train(Engine(tiny_llama_dir), "me", 0)
    assert train(Engine(tiny_llama_dir, token_budget=25), "me", 4) == alone
    free = train(Engine(tiny_llama_dir, deterministic=False), "me", 0)
    assert free.step == alone.step


SCHEDULES = {
    "a": ("LinearLR", {"start_factor": 0.2, "total_iters": 3}),
    "b": ("CosineAnnealingLR", {"T_max": 4}),
}


def test_two_threads_that_drive_two_adapters_get_the_bits_of_each_alone(tiny_llama_dir):
    def drive(model, name, seed, out):
        model.set_optimizer("AdamW", lr=1e-2, adapter_name=name)
        schedule, options = SCHEDULES[name]
        model.set_lr_scheduler(schedule, adapter_name=name, **options)
        losses = []
        for step in range(6):
            batch = drawn([6 + seed, 21], seed=10 * seed + step)
            losses.append(model.forward_backward(inputs=batch, adapter_name=name)["loss"])
            losses.append(model.clip_grad_and_step(0.5, adapter_name=name))
        state = model.get_state_dict(adapter_name=name)
        out[name] = (losses, {key: value.numpy().tobytes() for key, value in state.items()})

    def run(names):
        model, out = MultiLoraTransformersModel(model_id=tiny_llama_dir), {}
        for name in names:
            model.add_adapter_to_model(
                name,
                LoraConfig(r=2 + ord(name[0]) % 3, lora_dropout=0.1),
                gradient_accumulation_steps=1 + ord(name[0]) % 2,
            )
        threads = [
            threading.Thread(target=drive, args=(model, name, ord(name[0]) % 7, out))
            for name in names
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return out

    together = run(["a", "b"])
    steps = {name: [norm is not None for norm in out[0][1::2]] for name, out in together.items()}
    assert steps == {"a": [False, True] * 3, "b": [True] * 6}
    assert together["a"] == run(["a"])["a"]
    assert together["b"] == run(["b"])["b"]


def test_a_multi_lora_model_holds_to_its_limits(tiny_llama_dir, tmp_path):
    model = MultiLoraTransformersModel(model_id=tiny_llama_dir, max_loras=1, max_r=8, max_length=30)
    with pytest.raises(InvalidError, match="the rank is 9, max_r is 8"):
        model.add_adapter_to_model("a", {"r": 9})
    model.add_adapter_to_model("a", LORA)
    with pytest.raises(InvalidError, match="max_loras is 1: remove one"):
        model.add_adapter_to_model("b", LORA)
    # The limit of one sequence: together they may have more.
    assert model.forward_backward(inputs=drawn([16, 30]), adapter_name="a")["loss"] > 0
    with pytest.raises(InvalidError, match="sequence 1 of the inputs has 31 tokens, max_length is"):
        model.forward_backward(inputs=drawn([3, 31]), adapter_name="a")
    with pytest.raises(InvalidError, match="needs adapter_name"):
        model.forward_backward(inputs=BATCH)
