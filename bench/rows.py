"""A row of the report: its arithmetic, its JSON, its line in docs/benchmarks.md.

python bench/rows.py    writes the tables from bench/results/*.json again; measures nothing
"""

import json
import re
import statistics
from pathlib import Path

import verdict

ROOT = Path(__file__).resolve().parent.parent
RESULTS, DOCUMENT = ROOT / "bench/results/cpu.json", ROOT / "docs/benchmarks.md"

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
GPU_BEGIN, GPU_END = "<!-- bench on a GPU: begin -->", "<!-- bench on a GPU: end -->"
HEADER = (
    "| id | what | unit | peer | ours (median, best) | peer's (median, best) | ratio | floor "
    "| goal | limit | share of limit | notes |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)
NOW = {
    "C1": "LoRA training",
    "C2": "LoRA training in fp32",
    "C3": "LoRA training on GSM8K, mixed lengths",
    "C4": "peak memory of C1",
    "C5": "several tenants' training in one batch",
    "C6": "adapters of different ranks in one batch",
    "C7": "decoding, 1 sequence",
    "C8": "decoding, 8 and 32 sequences",
    "C9": "decoding with eight different adapters",
    "C10": "prompt processing",
    "C11": "training while another program takes a core",
    "C12": "memory and latency of 64 resident tenants",
    "F1": "training of all weights",
    "F2": "LoRA training of a model with routed experts",
    "F3": "LoRA training of a model with the gated delta rule",
    "F4": "decoding of both",
    "P1": "a script's classes",
    "R1c": "a loop of GRPO",
    "R2": "from a step to the first token with the new weights",
    "R4": "weights from a model's process to a sampler's",
    "S1": "the service: from a request to its result",
    "S2": "the service: small requests",
    "S3": "the service: a large result",
    "S4": "the service: many clients that train",
    "S5": "the service: a step's added time",
    "S6": "the service: a burst",
    "K2": "saving an adapter with its optimizer",
    "D1": "what ranks send for all weights",
    "D3": "what ranks that share the base send for a pass",
    "D4": "training by two processes",
    "D5": "what a group of processes costs an operation and a token",
    "D6": "from a kill to the error on every rank",
    "D7": "what a call to Ray's workers costs",
}
GPU = {
    "G1": "LoRA training, Qwen3-4B's shape",
    "G2": "LoRA training, Llama-3.1-8B's shape",
    "G3": "LoRA training, SmolLM2-135M's and Qwen3-0.6B's shapes",
    "G4": "peak memory of LoRA training, Llama-3.1-8B's shape",
    "G5": "head and cross entropy, forward and backward",
    "G6": "eight tenants' training in one batch",
    "G7": "LoRA training beside the frozen base's own passes",
    "G8": "decoding, 1 sequence",
    "G9": "1,000 requests at once",
    "G10": "decoding with 8 and with 64 adapters",
    "G11": "prompt processing",
}
# Measured by later work, shown so that nobody takes silence for success.
LATER = {
    "R1, R3": "reinforcement learning",
    "K1, K3": "loading, swapping adapters in",
    "D2": "communication of distributed training",
}


def make_row(id_, what, peer_name, samples, limit, **more):
    """samples: {"ours": [values], "peer": [values]}, higher is better; limit in the same unit.

    With lower_is_better=True the ratio is peer / ours and the share limit / ours.
    """
    lower = more.pop("lower_is_better", False)
    ours, peer = (statistics.median(samples[name]) for name in ("ours", "peer"))
    best = min if lower else max
    row = {
        "id": id_,
        "what": what,
        "ours": round(ours, 2),
        "peer": round(peer, 2),
        "peer_name": peer_name,
        "ratio": round(peer / ours if lower else ours / peer, 3),
        "limit": round(limit, 2),
        "share_of_limit": round(limit / ours if lower else ours / limit, 3),
        "best": {name: round(best(values), 2) for name, values in samples.items()},
        "samples": {name: [round(v, 2) for v in values] for name, values in samples.items()},
        **more,
    }
    return judged(row)


def judged(row):
    """The row with what verdict.py asks of it today: `floor` and `goal`, after the ratio."""
    out = {}
    for name, value in row.items():
        if name not in ("floor", "goal"):
            out[name] = value
        if name == "ratio":
            out |= {"floor": verdict.floor_of(row), "goal": verdict.goal_of(row)}
    return out


def parts_of(id_):
    """C10 and R1c as ('C', 10, '') and ('R', 1, 'c'), which sort as a reader expects."""
    letter, number, more = re.fullmatch(r"([A-Z])(\d+)([a-z]?)", id_).groups()
    return letter, int(number), more


def merged(old, new):
    """Rows of earlier runs stay unless this run measured them again."""

    def key(row):
        return row["id"], row["what"], row["peer_name"]

    fresh = {key(row) for row in new}
    rows = [row for row in old if key(row) not in fresh] + new
    return sorted(rows, key=lambda row: (*parts_of(row["id"]), row["what"], row["peer_name"]))


def machine_of(row):
    device = f"{row['device']}; " if "device" in row else ""
    return f"{device}{row['cpu']}, {row['threads']} threads; {row['machine']}"


def with_floor(row):
    """The notes of a row whose limit is its goal, with the least or most that must be
    (verdict.py)."""
    share, _ = verdict.shares_of(row)
    goal = "the limit is the goal"
    if share is None:
        return row["notes"]
    is_time = row["unit"] == "ms"  # less is better
    bound = row["limit"] / share if is_time else row["limit"] * share
    told = f"{goal}, at {'most' if is_time else 'least'} {bound:,.0f} {row['unit']} must be"
    return [told if note == goal else note for note in row["notes"]]


def line(row, machines):
    """A row of the table; where rows are of several machines or runs, it says of which."""
    notes = [] if row["valid"] else ["**invalid**"]
    notes += ["**noisy**"] if row["noisy"] else []
    notes += with_floor(row)
    notes += [f"run {machines.index(machine_of(row)) + 1}"] if len(machines) > 1 else []
    cells = [
        row["id"],
        row["what"],
        row["unit"],
        row["peer_name"],
        f"{row['ours']:,} ({row['best']['ours']:,})",
        f"{row['peer']:,} ({row['best']['peer']:,})",
        f"{row['ratio']:.2f}",
        *("" if row[name] is None else f"{row[name]:.2f}" for name in ("floor", "goal")),
        f"{row['limit']:,}",
        f"{row['share_of_limit']:.0%}",
        "; ".join(notes),
    ]
    return "| " + " | ".join(cells) + " |"


def table(rows):
    """Lines for the CPU's rows, and for what is measured nowhere yet."""
    found = {row["id"] for row in rows}
    missing = {id_: what for id_, what in (NOW | LATER).items() if id_ not in found}
    absent = [f"| {id_} | {what} | not measured yet{' |' * 10}" for id_, what in missing.items()]
    return with_absent(rows, absent)


def gpu_table(rows):
    """Lines for a GPU's rows, and for what is not measured, with the command that does."""
    found = {row["id"] for row in rows}
    absent = [
        f"| {id_} | {what} | not measured: `bench/run.py --device cuda --only {id_}`{' |' * 10}"
        for id_, what in GPU.items()
        if id_ not in found
    ]
    return with_absent(rows, absent)


def with_absent(rows, absent):
    rows = list(map(judged, rows))
    machines = sorted(set(map(machine_of, rows)))
    return "\n".join(
        [
            *(f"- Run {number}, measured on: {m}" for number, m in enumerate(machines, 1)),
            "",
            HEADER,
            *(line(row, machines) for row in rows),
            *absent,
        ]
    )


def between_markers(document, text, begin=BEGIN, end=END):
    """The document with everything between the markers replaced."""
    if begin not in document or end not in document:
        raise SystemExit(f"bench: docs/benchmarks.md lacks the lines {begin} and {end}")
    head, rest = document.split(begin, 1)
    return f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}"


def write(rows, results, document=None):
    """Merges rows into the JSON file, and fills the document's table from the whole of it: the
    CPU's from cpu.json, the GPUs' from all other files beside it."""
    results = Path(results)
    old = json.loads(results.read_text()) if results.exists() else []
    rows = list(map(judged, merged(old, rows)))
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(rows, indent=1) + "\n")
    if document is not None:
        if results.stem == "cpu":
            document = Path(document)
            document.write_text(between_markers(document.read_text(), table(rows)))
        else:
            write_gpu_table(document, results.parent)
    return rows


def write_gpu_table(document, folder):
    document, table = Path(document), gpu_table(of_gpus(folder))
    document.write_text(between_markers(document.read_text(), table, GPU_BEGIN, GPU_END))


def of_gpus(folder):
    """The rows of all results but the CPU's."""
    files = sorted(file for file in Path(folder).glob("*.json") if file.stem != "cpu")
    return [row for file in files for row in json.loads(file.read_text())]


def file_of(device_name):
    """A GPU's file of results: nvidia-h200.json."""
    return "-".join(re.findall("[a-z0-9]+", device_name.lower())) + ".json"


if __name__ == "__main__":
    if not RESULTS.exists():
        raise SystemExit(f"bench: there is no {RESULTS.relative_to(ROOT)}: run `make bench`")
    for file in sorted(RESULTS.parent.glob("*.json")):
        write([], file, DOCUMENT)
    write_gpu_table(DOCUMENT, RESULTS.parent)  # where there are no results as well
