"""CheckpointEngineManager in one process."""

import pytest

from twinkle import LoraConfig
from twinkle.checkpoint_engine import CheckpointEngineManager
from twinkle.data_format import SamplingParams
from twinkle.errors import InvalidError, NotAvailableError
from twinkle.model import TransformersModel
from twinkle.sampler import TorchSampler, vLLMSampler

pytestmark = pytest.mark.usefixtures("engine_built")

FEATURE = {"input_ids": [5, 6, 7, 8], "labels": [6, 7, 8, -100]}


@pytest.fixture
def model(tiny_llama_dir):
    model = TransformersModel(model_id=tiny_llama_dir, mixed_precision="no")
    model.add_adapter_to_model("default", LoraConfig(r=4, target_modules="all-linear"))
    model.set_optimizer("AdamW", lr=0.1)
    return model


def test_after_a_sync_the_sampler_has_the_weights_of_the_last_step(model):
    sampler = vLLMSampler(model=model)
    manager = CheckpointEngineManager(model=model, sampler=sampler)
    params = SamplingParams(max_tokens=3, temperature=0, logprobs=1)
    seen = []
    for _ in range(2):
        for merge in (True, False):
            assert manager.sync_weights(merge_and_sync=merge) is None
            sampler.reset_prefix_cache()
        (reply,) = sampler.sample([{"input_ids": [5, 6, 7]}], params)[0].sequences
        tokens = list(reply.tokens)
        ids = [5, 6, 7, *tokens]
        labels = [-100, -100, *tokens, -100]
        logps = model.forward_only(inputs=[{"input_ids": ids, "labels": labels}])["logps"][0]
        assert [round(x, 4) for x in logps[2:5].tolist()] == [
            round(of_token[0][1], 4) for of_token in reply.logprobs
        ]
        seen.append(logps)
        for _ in range(3):
            model.forward_backward(inputs=[FEATURE])
            model.clip_grad_and_step()
    assert not seen[0].equal(seen[1])


def test_what_nothing_would_reach_is_refused_by_name(model, tiny_llama_dir):
    own = TorchSampler(model_id=tiny_llama_dir)
    with pytest.raises(InvalidError, match=r"TorchSampler has weights of its own.*model=model"):
        CheckpointEngineManager(model=model, sampler=own)
    with pytest.raises(InvalidError, match="sampler is None, it must be a Sampler"):
        CheckpointEngineManager(model=model, sampler=None)
    with pytest.raises(InvalidError, match="model is 'm', it must be a TransformersModel"):
        CheckpointEngineManager(model="m", sampler=own)
    sampler = TorchSampler(model=model)
    with pytest.raises(NotAvailableError, match="platform is 'NPU'"):
        CheckpointEngineManager(model=model, sampler=sampler, platform="NPU")
    manager = CheckpointEngineManager(model=model, sampler=sampler, platform=None)
    with pytest.raises(InvalidError, match="merge_and_sync is 1, it must be True or False"):
        manager.sync_weights(merge_and_sync=1)
