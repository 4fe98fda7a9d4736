"""C9: eight sequences with eight different adapters beside the same ones with none."""

from foreign import in_turn
from limits import decoding_tokens_s
from rows import make_row
from training import foreign_of
from worker import Worker

SEQUENCES = 8
RANKS = (8, 16)


def rows_of(run, rank, worker):
    prompts = run.inputs.prompts(SEQUENCES)

    def sample_of(name, _):
        return worker.ask(
            "decode", prompts=prompts, num_tokens=run.num_tokens, with_adapters=name == "with"
        )

    rounds, rates, noisy = in_turn(
        run, f"C9 rank {rank}", ("with", "without"), sample_of, SEQUENCES * run.num_tokens
    )
    adapters = 2 * SEQUENCES * run.shape.adapter_weights(rank)
    left = run.shape.bytes / (run.shape.bytes + adapters)
    return make_row(
        "C9", f"decoding, bf16, {SEQUENCES} sequences, as many adapters of rank {rank}",
        "Twinkle without adapters", {"ours": rates["with"], "peer": rates["without"]},
        left * decoding_tokens_s(run.shape, run.machine, SEQUENCES),
        unit="tokens/s", noisy=noisy, valid=True,
        notes=[f"the bytes alone allow a ratio of {left:.2f}"],
        foreign=foreign_of(rounds), **run.machine_fields(),
    )  # fmt: skip


def c9(run):
    for rank in RANKS:
        with Worker("system_twinkle", run.threads) as worker:
            worker.ask("load", model=run.model)
            worker.ask("start_decoding", num_sequences=SEQUENCES)
            worker.ask("start_adapters", count=SEQUENCES, rank=rank)
            yield rows_of(run, rank, worker)
