"""Samplers of versions older than a run's newest, before and after kill -9, by the real engine."""

import pytest

pytest.importorskip("tinker")
from service.clients import steps, trainer, types
from service.wire import wait_until

JOURNAL_BYTES = "6000"  # so that a state takes the place of what published them


def said(sampler):
    """Its draws for one prompt, with the log-probabilities."""
    params = types.SamplingParams(max_tokens=12, seed=3, temperature=1.0, stop=[])
    drawn = sampler.sample(types.ModelInput.from_ints([1, 5, 9]), 2, params).result()
    return [(each.tokens, each.logprobs) for each in drawn.sequences]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--snapshot-seconds", "0"],
        ["--snapshot-seconds", "0", "--journal-bytes", JOURNAL_BYTES],
    ],
    ids=["from the journal", "from snapshots", "from a state"],
)
def test_each_published_version_says_after_kills_what_it_said_before(
    options, start, tiny_llama_dir, tmp_path
):
    server = start(tiny_llama_dir, tmp_path, "--log-level", "off", *options)
    client = trainer(server.client()).result()
    samplers = []
    for _ in range(3):
        steps(client, 2)
        samplers.append(client.save_weights_and_get_sampling_client().result())
    steps(client, 2)  # no version has it
    before = [said(sampler) for sampler in samplers]
    assert before[0] != before[1] != before[2] != before[0]
    if JOURNAL_BYTES in options:
        state = tmp_path / "journal/state"

        def is_there():
            steps(client, 1)
            return state.exists()

        wait_until(is_there, 60)
    for _ in range(2):  # the second start goes on from what the first made of it
        server.kill()
        server.start_again()
        assert [said(sampler) for sampler in samplers] == before
    steps(client, 1)
    newest = client.save_weights_and_get_sampling_client().result()
    assert said(newest) not in before
    assert [said(sampler) for sampler in samplers] == before
    assert server.stop() == 0
