"""What must be reached: the floors, and nowhere slower or larger than transformers (+ peft)."""

from dataclasses import dataclass

LCPP, PEFT = "llama.cpp", "transformers"
HEADER = "| missed | what | peer | ratio | must be |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Floor:
    """Of rows with this id whose `what` holds `part` and whose peer's name begins with `peer`."""

    id: str
    peer: str
    ratio: float
    part: str = ""

    def holds_for(self, row):
        return (
            row["id"] == self.id
            and self.part in row["what"]
            and row["peer_name"].startswith(self.peer)
        )


FLOORS = [
    Floor("C1", PEFT, 1.6),
    Floor("C3", PEFT, 1.85),
    Floor("C4", PEFT, 2.0),
    Floor("C5", PEFT, 1.8, "4 tenants"),
    Floor("C5", "Twinkle, one tenant after the other", 1.2, "8 tenants"),
    Floor("C6", "Twinkle, all of rank 16", 0.9),
    Floor("C7", LCPP, 1.0),
    Floor("C8", LCPP, 1.3, " 8 sequences"),
    Floor("C8", LCPP, 1.3, " 32 sequences"),
    Floor("C10", LCPP, 1.1),
]


@dataclass(frozen=True)
class Miss:
    id: str
    what: str
    peer: str
    ratio: float | None  # None: not measured
    wanted: float


def wanted(row):
    """The ratio that the row must have; None: it is information."""
    floors = [floor.ratio for floor in FLOORS if floor.holds_for(row)]
    if row["peer_name"].startswith(PEFT):
        floors.append(1.0)
    return max(floors, default=None)


def misses(rows, only):
    """Of the questions `only`, whose rows these are: what is below its floor, or not measured."""
    found = [
        Miss(row["id"], row["what"], row["peer_name"], row["ratio"], wanted(row))
        for row in rows
        if wanted(row) is not None and row["ratio"] < wanted(row)
    ]
    absent = [
        Miss(floor.id, floor.part.strip(), floor.peer, None, floor.ratio)
        for floor in FLOORS
        if floor.id in only and not any(map(floor.holds_for, rows))
    ]
    return found + absent


def table(missed):
    lines = [
        f"| {m.id} | {m.what} | {m.peer} | "
        f"{'not measured' if m.ratio is None else f'{m.ratio:.3f}'} | {m.wanted:.2f} |"
        for m in missed
    ]
    return "\n".join([HEADER, *lines])
