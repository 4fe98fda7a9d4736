"""What training requests of the real SDK mean where the wire leaves it open."""

import math
from pathlib import Path

import pytest
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
        with pytest.raises(tinker.UnprocessableEntityError, match=name.replace("beta2", "betas")):
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
    """Of the checkpoint tinker://RUN/KIND/NAME."""
    return Path(server.state) / "checkpoints" / path.removeprefix("tinker://")


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
