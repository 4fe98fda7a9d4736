"""The curve of a run, and trackers. `python -m twinkle.report FOLDER --to tensorboard,wandb` reads
lines as log.jsonl has them from standard input; a loop of your own makes a Report and calls log.
"""

import contextlib
import importlib.util
import json
import logging
import os
import sys
import time
from pathlib import Path

from twinkle.errors import require

_SECONDS = 5  # between two pictures
_PROJECT = "twinkle"


# Each begins a run in a tracker, and gives (log(values, step=), close()).
def _tensorboard(folder):
    from tensorboard.summary import Writer

    writer = Writer(str(folder / "tensorboard"))

    def log(values, step):
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _wandb(folder):
    import wandb

    project = os.environ.get("WANDB_PROJECT", _PROJECT)
    run = wandb.init(project=project, name=folder.name, dir=str(folder))
    return run.log, run.finish


def _swanlab(folder):
    import swanlab

    project = os.environ.get("SWANLAB_PROJECT", _PROJECT)
    swanlab.init(project=project, experiment_name=folder.name, logdir=str(folder / "swanlog"))
    return swanlab.log, swanlab.finish


_TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb, "swanlab": _swanlab}


def trackers(names):
    """The names in a list, or in a text with commas. InvalidError: one that is not known, or whose
    package is not installed."""
    names = names.split(",") if isinstance(names, str) else names
    names = [name.strip() for name in names if name.strip()]
    for name in names:
        require(name in _TRACKERS, f"'{name}' is no tracker; there are {', '.join(_TRACKERS)}")
        require(
            importlib.util.find_spec(name),
            f"'{name}' is not installed: {sys.executable} -m pip install {name}",
        )
    return names


class Report(contextlib.AbstractContextManager):
    """Draws `folder`/loss.png, every few seconds and at close(), and logs to trackers. It begins
    with what `folder`/log.jsonl has. As a context manager it closes itself. InvalidError: as
    trackers."""

    def __init__(self, folder, to=()):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lines, self._drawn = {}, time.monotonic()
        self._trackers = [_TRACKERS[name](self.folder) for name in trackers(to)]
        log = self.folder / "log.jsonl"
        for line in log.read_text().splitlines() if log.exists() else ():
            self._keep(json.loads(line))

    def log(self, line):
        """line: 'step' (an integer), and numbers: 'loss', 'validation_loss', 'reward', any."""
        self._keep(line)
        values = {name: value for name, value in line.items() if name != "step"}
        for log, _ in self._trackers:
            log(values, step=line["step"])
        if time.monotonic() - self._drawn > _SECONDS:
            self.draw()

    def draw(self):
        """Writes loss.png whole, or not at all; where there are rewards, it is theirs."""
        import matplotlib

        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of its font cache
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(7, 4))
        reward = self._points("reward")
        steps, values = reward or self._points("loss") or ((), ())
        axes.plot(steps, values, ".-", alpha=0.3, label="of each step")
        axes.plot(steps, smoothed(values), label="smoothed")
        held_out = self._points("validation_loss")
        if held_out:
            axes.plot(*held_out, "o-", label="validation")
        axes.set(xlabel="step", ylabel="mean reward" if reward else "loss (nats)")
        axes.set_title(self.folder.resolve().name)
        axes.grid(alpha=0.3)
        axes.legend()
        partial = self.folder / f".loss.png.partial-{os.getpid()}"
        figure.savefig(partial, format="png", dpi=120, bbox_inches="tight")
        plt.close(figure)
        partial.replace(self.folder / "loss.png")
        self._drawn = time.monotonic()

    def close(self):
        """Draws the last picture, and ends the trackers' runs."""
        self.draw()
        for _, close in self._trackers:
            close()

    def __exit__(self, *error):
        self.close()

    def _keep(self, line):
        self._lines.setdefault(line["step"], {}).update(line)

    def _points(self, name):
        """(steps, values), or None where no line has it."""
        points = [(step, line[name]) for step, line in self._lines.items() if name in line]
        return tuple(zip(*sorted(points), strict=True)) or None


def smoothed(values):
    """The mean of each of N values and those before it, whose weights fall with each step by
    N / (N + 10), at most 0.9."""
    out, total, weight = [], 0.0, 0.0
    fall = min(0.9, len(values) / (len(values) + 10))
    for value in values:
        total, weight = fall * total + value, fall * weight + 1
        out.append(total / weight)
    return out
