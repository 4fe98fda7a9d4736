"""C10: the time from a prompt to its first token, beside llama.cpp and transformers."""

from decoding import PEERS, started
from foreign import in_turn
from limits import prompt_tokens_s
from rows import make_row
from training import foreign_of

LENGTHS = (300, 512)  # tokens


def rows_of(run, id_, length, workers, of=""):
    """`of` names the model in the rows' text."""
    # Every round has a text of its own, lest something of an earlier one be kept.
    texts = run.inputs.full_batches(run.attempts + 1, 1, length)

    def sample_of(system, index):
        return workers[system].ask("prefill", prompt=texts[index]["ids"][0])

    rounds, rates, noisy = in_turn(run, f"{id_} x {length}", workers, sample_of, length)
    for system in PEERS:
        if system not in workers:
            continue
        same = sum(r["system_twinkle"]["tokens"] == r[system]["tokens"] for r in rounds)
        yield make_row(
            id_, f"a prompt of {length} tokens, bf16{of}", run.peer_names[system],
            {"ours": rates["system_twinkle"], "peer": rates[system]},
            prompt_tokens_s(run.shape, run.machine, length), unit="tokens/s",
            noisy=noisy, valid=True,
            notes=[f"the first token is the same in {same} of {len(rounds)} rounds"],
            foreign=foreign_of(rounds), **run.machine_fields(),
        )  # fmt: skip


def c10(run):
    with started(run) as workers:
        for worker in workers.values():
            worker.ask("start_decoding", num_sequences=1)
        for length in LENGTHS:
            yield from rows_of(run, "C10", length, workers)
