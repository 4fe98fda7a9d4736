"""C9: eight sequences with eight different adapters beside the same ones with none."""

from contextlib import ExitStack
from dataclasses import dataclass

from foreign import in_turn
from limits import decoding_tokens_s
from rows import make_row
from training import foreign_of
from worker import with_model

SEQUENCES = 8
RANKS = (8, 16)


@dataclass(frozen=True)
class Load:
    id: str
    what: str
    sequences: int
    adapters: int
    rank: int
    context: int = 0  # tokens of each sequence whose keys and values count for the limit


def row_of(run, load, worker):
    prompts = run.inputs.prompts(load.sequences)

    def sample_of(name, _):
        return worker.ask(
            "decode", prompts=prompts, num_tokens=run.num_tokens, with_adapters=name == "with"
        )

    label, tokens = f"{load.id} rank {load.rank}", load.sequences * run.num_tokens
    rounds, rates, noisy = in_turn(run, label, ("with", "without"), sample_of, tokens)
    adapters = 2 * load.adapters * run.shape.adapter_weights(load.rank)
    context = load.sequences * load.context * run.shape.kv_bytes
    left = (run.shape.bytes + context) / (run.shape.bytes + context + adapters)
    return make_row(
        load.id, load.what,
        "Twinkle without adapters", {"ours": rates["with"], "peer": rates["without"]},
        left * decoding_tokens_s(run.shape, run.machine, load.sequences, context),
        unit="tokens/s", noisy=noisy, valid=True,
        notes=[f"the bytes alone allow a ratio of {left:.2f}"],
        foreign=foreign_of(rounds), **run.machine_fields(),
    )  # fmt: skip


def c9(run):
    for rank in RANKS:
        what = f"decoding, bf16, {SEQUENCES} sequences, as many adapters of rank {rank}"
        yield measured(run, Load("C9", what, SEQUENCES, SEQUENCES, rank))


def measured(run, load):
    with ExitStack() as stack:
        worker = with_model(stack, run, "system_twinkle")
        worker.ask("start_decoding", num_sequences=load.sequences)
        worker.ask("start_adapters", count=load.adapters, rank=load.rank)
        return row_of(run, load, worker)
