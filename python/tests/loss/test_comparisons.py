"""A policy is compared with the policy that sampled, and with a reference. Labels that are their
own tokens, as other trainers take them, are refused."""

import math
import pickle

import numpy as np
import pytest

from twinkle import InvalidError, LoraConfig, SamplingParams, TransformersModel
from twinkle.engine import Engine
from twinkle.sampler import TorchSampler

pytestmark = pytest.mark.usefixtures("engine_built")
ROW = {"input_ids": [5, 9, 7, 11, 3, 8], "labels": [-100, 7, 11, 3, 8, 2]}
FAR = "model: the ratio of the policy to old_logps is"


def made(directory, loss, **options):
    model = TransformersModel(model_id=directory, mixed_precision="no")
    model.add_adapter_to_model("default", LoraConfig(r=2, target_modules="all-linear"))
    model.set_loss(loss, **options)
    model.set_optimizer("AdamW", lr=1e-2)
    return model


def sampled(model, temperature):
    sampler = TorchSampler(model=model)
    params = SamplingParams(
        max_tokens=12, temperature=temperature, logprobs=1, num_samples=2, seed=3
    )
    responses = sampler.sample({"input_ids": [5, 9, 7]}, params, return_encoded=True)
    return responses[0].sequences


def test_old_logps_belong_to_their_temperature(tiny_llama_dir, logged):
    model = made(tiny_llama_dir, "GRPOLoss")
    model.add_metric("GRPOMetric", is_training=True)
    replies = pickle.loads(pickle.dumps(sampled(model, 0.6)))  # as other processes get them
    assert [reply.temperature for reply in replies] == [0.6, 0.6]
    assert sampled(model, 0)[0].temperature == 1.0
    batch = {
        "inputs": [reply.new_input_feature for reply in replies],
        "old_logps": [reply.logprobs for reply in replies],
        "advantages": [1.0, -1.0],
    }
    refusal = r"old_logps of inputs\[0\] were sampled at temperature 0\.6, but .* scored at 1\.0"
    with pytest.raises(InvalidError, match=refusal):
        model.forward_backward(**batch)
    model.forward(inputs=batch["inputs"])
    with pytest.raises(InvalidError, match=refusal):
        model.calculate_loss(old_logps=batch["old_logps"], advantages=batch["advantages"])
    model.forward_backward(**batch, temperature=0.6)
    seen = model.calculate_metric(is_training=True)
    assert seen["train/token_ratio_max"] == pytest.approx(1, abs=1e-4)
    assert not [text for text in logged if FAR in text]


def test_a_reference_is_scored_at_the_batchs_temperature(tiny_llama_dir):
    model = made(tiny_llama_dir, "GRPOLoss", beta=0.1)
    score = {"inputs": [ROW], "disable_lora": True}
    batch = {"inputs": [ROW], "advantages": [1.0], "temperature": 0.6}
    with pytest.raises(InvalidError, match=r"ref_outputs were scored at temperature 1\.0, but"):
        model.forward_backward(**batch, ref_outputs=model.forward_only(**score))
    model.forward_backward(**batch, ref_outputs=model.forward_only(**score, temperature=0.6))


@pytest.mark.parametrize("loss", ["GRPOLoss", "PPOLoss", "GSPOLoss", "SAPOLoss", "CISPOLoss"])
def test_a_first_batch_far_from_its_old_logps_is_told_once(tiny_llama_dir, logged, loss):
    def told(shift):
        model = made(tiny_llama_dir, loss)
        new = model.forward_only(inputs=[ROW])["logps"][0]
        del logged[:]
        for more in (shift, 3.0):  # a later batch may be anywhere
            model.forward_backward(inputs=[ROW], old_logps=[new - more], advantages=[1.0])
        return [text for text in logged if FAR in text]

    assert told(math.log(1.2)) == told(math.log(0.85)) == []
    assert len(told(math.log(1.3))) == len(told(math.log(0.75))) == 1
    assert told(math.log(2))[0].startswith(f"{FAR} 2 in the mean of this run's first batch")


def test_so_it_is_of_the_engines_own_losses(tiny_llama_dir, logged):
    """Tinker's score prompts, too, whose advantages are 0 and whose old ones are anything."""
    engine = Engine(tiny_llama_dir, mixed_precision="no")
    tenants = [engine.tenant(name, LoraConfig(r=2)) for name in "ab"]
    row = {"input_ids": ROW["input_ids"], "labels": [9, *ROW["labels"][1:]]}
    new = tenants[0].logprobs([row]).result()[0]
    for tenant, shift in zip(tenants, (0.0, 1.0), strict=True):
        old = new - np.float32(shift)
        old[0] = 0.0
        future = tenant.forward_backward(
            [row], "importance_sampling", logprobs=[old], advantages=[[0.0, *[1.0] * 5]]
        )
        future.result()
        assert len([text for text in logged if FAR in text]) == int(shift)


@pytest.mark.parametrize("loss", [("DPOLoss", {}), ("GRPOLoss", {"beta": 0.1})])
def test_a_model_that_trains_all_weights_is_not_its_own_reference(tiny_llama_dir, loss):
    name, options = loss
    model = TransformersModel(model_id=tiny_llama_dir)
    model.forward_only(inputs=[ROW], disable_lora=True)  # a reference that nobody trains
    model.set_loss(name, **options)
    model.set_optimizer("AdamW", lr=1e-3)
    for _ in range(2):  # before its first step, too
        with pytest.raises(InvalidError, match="trains all weights: without an adapter"):
            model.forward_only(inputs=[ROW], disable_lora=True)
    known = model.forward_only(inputs=[ROW, ROW])["logps"]
    more = {} if name == "DPOLoss" else {"advantages": [1.0, -1.0]}
    model.forward_backward(inputs=[ROW, ROW], ref_logps=known, **more)


@pytest.mark.parametrize("has_adapter", [True, False])
def test_a_policy_that_has_learnt_is_not_its_own_reference(tiny_llama_dir, has_adapter):
    def policy():
        if has_adapter:
            return made(tiny_llama_dir, "DPOLoss")
        model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
        model.set_loss("DPOLoss")
        model.set_optimizer("AdamW", lr=1e-2)
        return model

    model, pair = policy(), [ROW, ROW]
    first = model.forward_only(inputs=pair)
    for _ in range(2):  # before its first step it is still the reference that nobody trains
        model.forward_backward(inputs=pair, ref_outputs=first)
        model.clip_grad_and_step()
    refs = model.forward_only(inputs=pair)
    refusal = r"ref_outputs were scored by the policy itself, after 2 of its steps: .* ref_logps="
    with pytest.raises(InvalidError, match=refusal):
        model.forward_backward(inputs=pair, ref_outputs=refs)
    model.forward(inputs=pair)
    with pytest.raises(InvalidError, match=refusal):
        model.calculate_loss(ref_outputs=pickle.loads(pickle.dumps(refs)))
    model.forward_backward(inputs=pair, ref_logps=refs["logps"])
    policy().forward_backward(inputs=pair, ref_outputs=refs)  # a second model's reference
    if has_adapter:
        base = model.forward_only(inputs=pair, disable_lora=True)
        model.forward_backward(inputs=pair, ref_outputs=base)


@pytest.mark.parametrize("method", ["forward_backward", "forward", "forward_only"])
def test_labels_that_are_their_own_tokens_are_refused(tiny_llama_dir, method):
    model = made(tiny_llama_dir, "CrossEntropyLoss")
    ids = list(range(3, 13))
    call = getattr(model, method)
    with pytest.raises(InvalidError, match=r"labels of inputs\[0\] are its own tokens; here"):
        call(inputs=[{"input_ids": ids, "labels": [-100, -100, *ids[2:]]}])
    call(inputs=[{"input_ids": ids, "labels": [*ids[1:], -100]}])
    model.set_loss(lambda inputs, outputs: -outputs["logps"].sum())  # for which they may be meant
    call(inputs=[{"input_ids": ids, "labels": ids}])
