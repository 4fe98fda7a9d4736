"""Operations that wait, are cancelled, are refused for want of room, and are counted."""

import time

import pytest
from engine_batches import BATCH, LORA
from features import drawn

from twinkle import BusyError, ConflictError, InvalidError, NotFoundError
from twinkle.engine import Engine

pytestmark = pytest.mark.usefixtures("engine_built")


def wait_until_none(engine, what):
    deadline = time.monotonic() + 60
    while engine.stats()[what]:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def wait_for_all(engine):
    """Until nothing is queued; what was waited for is not taken."""
    wait_until_none(engine, "num_queued")


def test_a_cancelled_operation_never_was(tenant):
    want = tenant.inspect().result()
    waiting = [tenant.forward(drawn([400] * 8, seed=i)) for i in range(8)]
    future = tenant.forward_backward(BATCH)  # after eight batches of its own tenant
    assert future.cancel()
    with pytest.raises(ConflictError, match="engine: cancelled"):
        future.result()
    assert future.done()
    for each in waiting:
        each.result()
    assert not waiting[0].cancel(), "it has ended"
    assert tenant.inspect().result() == want


def test_operations_that_cannot_succeed_say_so_in_their_future(tenant, tmp_path):
    with pytest.raises(ConflictError, match="has no accumulated gradients"):
        tenant.step().result()
    with pytest.raises(NotFoundError):
        tenant.load(tmp_path / "nowhere").result()


def test_a_full_queue_refuses_clearly_and_takes_more_when_there_is_room(tiny_llama_dir):
    engine = Engine(tiny_llama_dir, max_queued=3, max_queued_total=4)
    a, b = engine.tenant("a", LORA), engine.tenant("b", LORA)
    slow = drawn([400] * 64)  # all that follows is told while it is computed
    waiting = [a.forward_backward(rows) for rows in (slow, BATCH, BATCH)]
    with pytest.raises(BusyError, match=r"tenant 'a' has 3 operations in its queue .* wait for"):
        a.step()
    waiting.append(b.zero_grad())
    with pytest.raises(BusyError, match="max_queued_total is 4; try again later"):
        b.zero_grad()
    assert engine.stats()["tenants"]["a"]["num_queued"] == 3
    for future in waiting:
        future.result()
    assert a.step().result().step == 1
    assert engine.stats()["num_queued"] == 0


def test_results_count_as_bytes_until_they_are_taken_or_dropped(tiny_llama_dir):
    vocabulary = Engine(tiny_llama_dir).model_info()["vocab_size"]
    engine = Engine(tiny_llama_dir, max_queued_bytes=3 * 60 * vocabulary * 4)
    base = engine.tenant("base")
    batch = drawn([50])  # one of three has room besides the rest
    waiting = [base.forward(batch, logits=True) for _ in range(3)]
    with pytest.raises(BusyError, match=r"tenant 'base' holds .* max_queued_bytes is "):
        base.forward(batch, logits=True)
    wait_for_all(engine)
    with pytest.raises(BusyError, match="take some of their results, or drop them"):
        base.forward(batch, logits=True)
    taken = waiting.pop().result()
    waiting.append(base.forward(batch, logits=True))
    assert taken.logits[0].shape == (50, vocabulary)
    with pytest.raises(InvalidError, match="submit less at once"):
        base.forward(drawn([200]), logits=True)
    for future in waiting:
        future.result()
    assert engine.stats()["queued_bytes"] == 0


def test_tokens_of_a_stream_count_as_bytes_until_they_are_read(tiny_llama_dir):
    engine = Engine(tiny_llama_dir)
    stream = engine.tenant("base").sample_stream({"input_ids": [5]}, {"max_tokens": 20})
    num_tokens = len(stream.result().sequences[0].tokens)
    assert engine.stats()["queued_bytes"] >= 56 * num_tokens
    assert len(list(stream)) == num_tokens
    assert engine.stats()["queued_bytes"] == 0


def test_a_closed_stream_holds_its_result_alone_and_that_until_it_is_taken(tiny_llama_dir):
    engine = Engine(tiny_llama_dir)
    base, params = engine.tenant("base"), {"max_tokens": 200, "seed": 1, "temperature": 1.5}
    unread = base.sample_stream({"input_ids": [5]}, params)
    batch, busy = drawn([400] * 8), engine.tenant("busy", LORA)
    before = [busy.forward(batch) for _ in range(60)]  # a second, for which its sample waits
    never_begun = busy.sample_stream({"input_ids": [5]}, params)
    never_begun.close()
    for future in before:
        future.cancel()
    del before, future
    wait_for_all(engine)
    held = engine.stats()["queued_bytes"]
    unread.close()
    of_result = engine.stats()["queued_bytes"]
    num_tokens = len(unread.result().sequences[0].tokens)
    assert held - of_result >= 48 * num_tokens  # a token with its place and log-probability
    assert of_result > 0
    # One of `before` that had just ended leaves the queue a moment before its future, which nobody
    # holds, is told and gone.
    wait_until_none(engine, "queued_bytes")
    with pytest.raises(ConflictError, match="engine: cancelled"):
        never_begun.result()


def test_statistics_count_what_was_done(tiny_llama_dir):
    engine = Engine(tiny_llama_dir, token_budget=64)
    a, b = engine.tenant("a", LORA), engine.tenant("b", LORA, priority=1, weight=2.0)
    a.forward_backward(drawn([60, 60])).result()
    b.forward_backward(drawn([30])).result()
    a.sample([{"input_ids": [5]}], {"max_tokens": 7, "temperature": 0}).result()
    stats = engine.stats()
    assert stats["num_batches"] == 3 and stats["batches"] == {"num_tokens": 150, "num_tenants": 3}
    assert [batch["num_tokens"] for batch in stats["last_batches"]] == [60, 60, 30]
    assert stats["tenants"]["a"]["num_tokens"] == 120 and stats["tenants"]["b"]["num_tokens"] == 30
    assert 1 <= stats["tenants"]["a"]["num_sampled_tokens"] <= 7
    assert stats["num_sampling_steps"] == stats["tenants"]["a"]["num_sampled_tokens"]
    assert stats["num_free_kv_pages"] == stats["num_kv_pages"] == 32768 // stats["kv_page_tokens"]
    assert stats["training_seconds"] > 0 and stats["sampling_seconds"] > 0
    assert all(isinstance(value, (int, float, str, dict, list)) for value in stats.values())


def test_tenants_beyond_the_bytes_wait_in_files_and_come_back_bit_for_bit(tiny_llama_dir, tmp_path):
    def train(**options):
        engine = Engine(tiny_llama_dir, **options)
        tenants = [engine.tenant(f"tenant {i}", LORA, seed=i) for i in range(4)]
        for step in range(2):
            for tenant in tenants:
                tenant.forward_backward(drawn([9, 20], seed=step)).result()
                tenant.step(lr=0.05).result()
        stats = engine.stats()
        return [tenant.inspect().result() for tenant in tenants], stats

    free, stats = train()
    assert stats["num_parked"] == stats["num_returns"] == stats["resident_bytes"] == 0
    tight, stats = train(resident_bytes=1, park_directory=tmp_path)
    assert tight == free
    assert stats["num_parked"] == 3 and stats["num_returns"] >= 4
    assert stats["resident_bytes"] > 0 and stats["last_parking_failure"] == ""
    assert list(tmp_path.iterdir()) == []  # its folder goes with the engine


def test_layers_beyond_the_activation_budget_are_computed_twice_with_the_same_bits(tiny_llama_dir):
    def train(activation_bytes):
        engine = Engine(tiny_llama_dir, activation_bytes=activation_bytes)
        tenant = engine.tenant("me", LORA)
        tenant.forward_backward(drawn([50, 60])).result()
        return tenant.inspect().result(), engine.stats()["num_recomputed_layers"]

    (want, none), (got, some) = train(0), train(1)
    assert got == want and none == 0 and some > 0
