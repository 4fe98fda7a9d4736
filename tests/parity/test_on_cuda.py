"""The same comparisons with the engine on a GPU, where there is one. The first case of each runs on
the CPU as well, so that this file's own code runs everywhere."""

import pytest
import torch
from parity import (
    models,
    ours,
    test_generation,
    test_gradients,
    test_logprobs,
    test_many_tenants,
    test_training,
)

HAS_GPU = torch.cuda.is_available()
ALL = range(models.COUNT)
SMOLLM2 = "smollm2"


def each(cases, on_the_cpu=1):
    """(device, case): all of them on the GPU, the first on the CPU. Without a GPU one is skipped,
    which stands for all."""
    cases = list(cases)
    on_gpu = pytest.mark.skipif(not HAS_GPU, reason="torch finds no CUDA device")

    def named(device, case, *marks):
        name = models.name_of(case) if isinstance(case, int) else case
        return pytest.param(device, case, id=f"{device}-{name}", marks=marks)

    pairs = [named("cpu", case) for case in cases[:on_the_cpu]]
    pairs += [named("cuda", case, on_gpu) for case in (cases if HAS_GPU else cases[:1])]
    return pytest.mark.parametrize(("device", "case"), pairs, indirect=["device"])


@pytest.fixture
def device(request, monkeypatch):
    monkeypatch.setattr(ours, "DEVICE", request.param)


@pytest.fixture(autouse=True)
def every_engine(device, monkeypatch):
    """Every test of this file has made an engine on its device."""
    from twinkle import _core

    made, engine = [], _core.Engine
    monkeypatch.setattr(
        _core, "Engine", lambda *a, **kw: made.append(kw["device"]) or engine(*a, **kw)
    )
    yield
    assert made and set(made) == {ours.DEVICE}


@each(ALL)
def test_scores(device, case):
    test_logprobs.test_packed_sequences_score_as_each_alone_in_transformers(case)


@each(["all"], on_the_cpu=0)  # where it takes long, and runs in test_logprobs.py
def test_bfloat16(device, case):
    test_logprobs.test_bfloat16_over_all_models_is_as_near_to_float32_as_transformers_bfloat16()


@each(ALL)
def test_gradients_of_all_weights(device, case):
    test_gradients.test_every_weights_gradient_equals_transformers(case)


@each(ALL)
def test_gradients_of_an_adapter(device, case, tmp_path):
    test_gradients.test_every_adapters_gradient_equals_peft(case, tmp_path)


@each([*ALL, SMOLLM2])
def test_ten_steps_of_all_weights(device, case, gsm8k, request):
    if case == SMOLLM2:
        directory = request.getfixturevalue("smollm2_dir")
        return test_training.test_steps_of_all_of_smollm2s_weights(
            test_training.STEPS, gsm8k, directory
        )
    return test_training.test_steps_of_all_weights(case, "AdamW", gsm8k)


@each([*ALL, SMOLLM2])
def test_ten_steps_of_an_adapter(device, case, gsm8k, tmp_path, request):
    if case != SMOLLM2:
        return test_training.test_steps_of_an_adapter(case, gsm8k, tmp_path)
    directory = request.getfixturevalue("smollm2_dir")
    return test_training.test_steps_of_smollm2_with_lora_on_all_linears(
        "AdamW", test_training.STEPS, gsm8k, directory, tmp_path
    )


@each([*models.ONE_OF_EACH, SMOLLM2])
def test_tenants_of_other_ranks_targets_and_losses_in_one_batch(
    device, case, gsm8k, tmp_path, request
):
    crowd = test_many_tenants.crowd_of(case, gsm8k, tmp_path, request)
    test_many_tenants.test_each_tenants_scores_equal_transformers_and_peft(crowd)
    test_many_tenants.test_each_adapters_gradients_equal_peft(crowd)
    test_many_tenants.test_tenants_of_other_losses_share_a_batch_and_each_equals_peft_and_itself_alone(
        crowd
    )
    test_many_tenants.test_each_tenants_text_and_steps_equal_transformers_and_peft(crowd)


@each([*ALL, SMOLLM2])
def test_greedy_text(device, case, request):
    if case != SMOLLM2:
        return test_generation.test_greedy_tokens_equal_transformers(case)
    names = ("smollm2", "smollm2_tokenizer", "smollm2_dir")
    return test_generation.test_smollm2_writes_the_text_that_transformers_writes(
        *map(request.getfixturevalue, names)
    )


@each(["drawn"])
def test_greedy_text_of_an_adapter(device, case, tmp_path):
    test_generation.test_greedy_text_of_an_adapter_equals_peft(tmp_path)


@each(ALL)
def test_sampled_logprobs(device, case):
    test_generation.test_sampled_logprobs_equal_transformers_scores_of_the_same_tokens(case)
