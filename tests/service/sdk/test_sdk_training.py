"""Meanings of the real SDK's training requests where the wire leaves them open."""

import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from service.clients import ADAM, datum, loss_of, norm_of, steps, tinker, trainer, types


def test_a_step_without_gradients_is_one_by_zeros_and_breaks_no_window(service):
    client, other = trainer(service), trainer(service)
    before = loss_of(client)
    assert norm_of(client.optim_step(ADAM)) == 0
    assert loss_of(client) == before, "there is no momentum yet"
    learned = steps(client, 2)
    assert learned[1] < learned[0] == before
    stepped = client.optim_step(ADAM)
    passed = client.forward_backward([datum()], "cross_entropy")
    after = client.optim_step(ADAM).result().metrics
    assert norm_of(stepped) == 0
    assert after["step"] == 5 and after["unclipped_grad_l2:mean"] > 0, "it was not dropped"
    steps(other, 2)
    assert loss_of(other) != passed.result().metrics["loss:sum"], "the momentum went on"


def test_a_step_that_is_refused_leaves_its_batch_to_the_next_one(service):
    client, other = trainer(service), trainer(service)
    passed = client.forward_backward([datum()], "cross_entropy")
    wrong = {"learning_rate": math.nan, "beta2": 1.0, "grad_clip_norm": math.nan, "eps": -1.0}
    for name, value in wrong.items():
        with pytest.raises(tinker.UnprocessableEntityError, match=name):
            client.optim_step(types.AdamParams(**{"learning_rate": 1e-2, name: value})).result()
    stepped = client.optim_step(ADAM)
    assert [passed.result().metrics["loss:sum"]] == steps(other, 1)
    assert stepped.result().metrics["step"] == 1
    assert loss_of(client) == loss_of(other)


def test_another_optimizer_is_refused_when_a_run_is_made_and_by_each_step(service):
    dimuon = types.DimuonOptimizerConfig()
    client = trainer(service)
    path = client.save_state("with-adamw").result().path
    for make in (
        lambda: trainer(service, optimizer=dimuon),
        lambda: service.create_training_client_from_state(path, optimizer=dimuon),
    ):
        with pytest.raises(tinker.UnprocessableEntityError, match="'dimuon', it must be adamw"):
            make().result()
    with pytest.raises(tinker.UnprocessableEntityError, match="adam_params is missing"):
        client.optim_step(types.DimuonParams(learning_rate=0.1)).result()
    assert len(steps(trainer(service, optimizer=types.AdamOptimizerConfig()), 1)) == 1


def test_a_call_that_is_refused_in_a_run_leaves_the_run_as_it_was(service):
    client, other = trainer(service), trainer(service)
    path = client.save_state("here").result().path
    for refused, call in (
        (tinker.NotFoundError, lambda: client.load_state(path.replace("here", "nowhere"))),
        (tinker.UnprocessableEntityError, lambda: client.load_state(path)),
        (tinker.NotFoundError, lambda: client.save_weights_external("a")),
    ):
        with pytest.raises(refused):
            call().result(timeout=60)
    assert steps(client, 2) == steps(other, 2)


def test_of_two_saves_of_one_name_in_flight_the_second_is_refused(service):
    client = trainer(service)
    for save in (client.save_state, client.save_weights_for_sampler):
        first, second = save("twice"), save("twice")
        with pytest.raises(tinker.UnprocessableEntityError, match="exists, or is being saved"):
            second.result()
        assert first.result().path.endswith("/twice")
        with pytest.raises(tinker.UnprocessableEntityError, match="exists, or is being saved"):
            save("twice").result()
    steps(client, 1)
    path = client.save_state("twice", overwrite=True).result().path
    loaded = service.create_training_client_from_state(path)
    assert loss_of(loaded) == loss_of(client)


def folder_of(server, path):
    """Files of the checkpoint tinker://RUN/KIND/NAME."""
    return Path(server.state) / "checkpoints" / path.removeprefix("tinker://")


TENSORS = ("adapter_model", "training")  # files of a saved state


def moments(state, name):
    """The first and the second, of a saved state, of the tensor of this name in an adapter."""
    of = "optimizer/" + name.removeprefix("base_model.model.")
    return [state[f"{of}.{moment}"].astype(np.float64) for moment in ("exp_avg", "exp_avg_sq")]


def adam(before, g, step, numbers):
    """Loshchilov & Hutter 2019, algorithm 2."""
    w, m, v = before
    beta1, beta2, rate = (numbers[name] for name in ("beta1", "beta2", "learning_rate"))
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
    bounded = np.sqrt(v / (1 - beta2**step)) + numbers["eps"]
    return w - rate * (numbers["weight_decay"] * w + m / (1 - beta1**step) / bounded), m, v


def test_a_state_has_no_gradients_that_no_step_has_taken(service, server):
    client = trainer(service)
    steps(client, 1)
    clean = client.save_state("clean").result().path
    client.forward_backward([datum()], "cross_entropy").result()
    between = client.save_state("between").result().path
    files = [folder_of(server, path) / "training.safetensors" for path in (clean, between)]
    assert files[0].read_bytes() == files[1].read_bytes()
    resumed = service.create_training_client_from_state_with_optimizer(between)
    from_clean = service.create_training_client_from_state_with_optimizer(clean)
    assert norm_of(resumed.optim_step(ADAM)) == 0
    assert norm_of(from_clean.optim_step(ADAM)) == 0
    assert loss_of(resumed) == loss_of(from_clean)
    assert norm_of(client.optim_step(ADAM)) > 0, "the run that was saved keeps its own"


def test_steps_are_those_of_adams_formula_with_all_of_their_numbers(service, server):
    client, probe = trainer(service), trainer(service)
    for run in (client, probe):
        steps(run, 1)
        run.forward_backward([datum()], "cross_entropy")
    folder = folder_of(server, client.save_state("before").result().path)
    weights, state = (load_file(folder / f"{name}.safetensors") for name in TENSORS)
    # A step of this kind leaves the gradients themselves as first moments.
    norm = norm_of(probe.optim_step(types.AdamParams(learning_rate=0.0, beta1=0.0)))
    probed = load_file(
        folder_of(server, probe.save_state("probed").result().path) / f"{TENSORS[1]}.safetensors"
    )
    gradients = {name: moments(probed, name)[0] for name in weights}
    squares = sum((g.astype(np.float64) ** 2).sum() for g in gradients.values())
    assert norm == pytest.approx(math.sqrt(squares), rel=1e-6)
    clipped = {name: g * 0.5 for name, g in gradients.items()}
    names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
    first = dict(zip(names, (0.02, 0.8, 0.9, 0.01, 0.3), strict=True))
    second = dict(zip(names, (0.05, 0.6, 0.7, 0.03, 0.1), strict=True))
    client.optim_step(types.AdamParams(**first, grad_clip_norm=norm / 2))
    client.optim_step(types.AdamParams(**second, grad_clip_norm=1.0))  # by gradients of 0
    told = load_file(
        folder_of(server, client.save_weights_for_sampler("after").result().path)
        / f"{TENSORS[0]}.safetensors"
    )
    for name, before in weights.items():
        m, v = moments(state, name)
        w, m, v = adam((before.astype(np.float64), m, v), clipped[name], 2, first)
        w, m, v = adam((w, m, v), np.zeros_like(w), 3, second)
        assert np.abs(w - before).max() > 1e-3
        np.testing.assert_allclose(told[name], w, rtol=1e-5, atol=3e-7, err_msg=name)


GROUPS = {
    "train_attn": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "train_mlp": {"gate_proj", "up_proj", "down_proj"},
    "train_unembed": {"lm_head"},
}


@pytest.mark.parametrize("on", [["train_attn"], ["train_mlp"], ["train_unembed"], list(GROUPS)])
def test_a_run_trains_the_groups_of_modules_that_it_names(service, server, on):
    groups = {name: name in on for name in GROUPS}
    client = service.create_lora_training_client("tiny", rank=2, **groups)
    losses = steps(client, 2)
    assert losses[1] < losses[0]
    path = client.save_weights_for_sampler("groups").result().path
    saved = load_file(folder_of(server, path) / "adapter_model.safetensors")
    modules = {name.split(".")[-3] for name in saved}
    assert modules == set().union(*(GROUPS[name] for name in on))
    for name, values in saved.items():
        assert "lora_A" in name or values.any(), f"{name} has not learned"


def test_a_run_and_its_checkpoints_are_told_to_a_rest_client(service, server):
    groups = {"train_attn": True, "train_mlp": False, "train_unembed": True}
    client = service.create_lora_training_client("tiny", rank=2, **groups)
    begun = datetime.now(UTC).replace(microsecond=0)
    steps(client, 1)
    paths = [client.save_state("a").result().path]
    paths.append(client.save_weights_for_sampler("b").result().path)
    loaded = service.create_training_client_from_state(paths[0])
    paths.append(loaded.save_state("c").result().path)
    alone = tinker.RestClient(base_url=server.url, api_key="tml-test")
    for rest in (service.create_rest_client(), alone):
        for path in paths:
            run = rest.get_training_run_by_tinker_path(path).result()
            assert path.startswith(f"tinker://{run.training_run_id}/")
            assert (run.base_model, run.is_lora, run.lora_rank) == ("tiny", True, 2)
            assert begun <= run.last_request_time <= datetime.now(UTC) and not run.corrupted
            info = rest.get_weights_info_by_tinker_path(path).result()
            assert (info.base_model, info.is_lora, info.lora_rank) == ("tiny", True, 2)
            assert {name: getattr(info, name) for name in groups} == groups
    absent = paths[0] + "x"
    with pytest.raises(tinker.NotFoundError, match=f"tinker_path '{absent}' is not known"):
        alone.get_weights_info_by_tinker_path(absent).result()


def test_a_run_from_a_state_may_name_the_model_that_is_served_and_no_other(service):
    client = trainer(service)
    path = client.save_state("named").result().path
    named = service.create_training_client_from_state(path, base_model="tiny")
    assert named.get_info().model_data.model_name == "tiny"
    assert loss_of(named) == loss_of(client)
    for more, said in (({"base_model": "nobody/x"}, "'nobody/x' is not served"),
                       ({"weights_access_token": "tml-x"}, "weights_access_token")):  # fmt: skip
        with pytest.raises(tinker.UnprocessableEntityError, match=said):
            service.create_training_client_from_state(path, **more).result()
