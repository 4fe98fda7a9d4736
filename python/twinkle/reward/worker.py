"""`python -m twinkle.reward.worker FILE.py:NAME`: the rewards of `twinkle train --loss grpo`.

The first line of standard output is 'ok', or what is wrong with NAME. Then each line of standard
input is a JSON list of trajectories, and its answer {"rewards": [...]}, or {"error": text,
"index": the trajectory's}.
"""

import importlib.util
import json
import math
import os
import sys
from pathlib import Path

import twinkle.reward
from twinkle.errors import require


def load(name):
    """The function that FILE.py:NAME is, of trajectories, or the object of a class; NAME alone is
    one of twinkle.reward. InvalidError: there is none; and what the file raises."""
    file, _, attribute = name.rpartition(":")
    module = twinkle.reward
    if file:
        path = Path(file)
        require(path.is_file(), f"there is no file {file}")
        sys.path.insert(0, str(path.resolve().parent))  # as `python FILE.py` has it
        spec = importlib.util.spec_from_file_location("reward_file", path)
        module = sys.modules["reward_file"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    found = getattr(module, attribute, None)
    known = ", ".join(n for n, value in vars(module).items() if callable(value) and n[0] != "_")
    where = file or "twinkle.reward"
    require(callable(found), f"{where} has no function {attribute}; it has {known}")
    return found() if isinstance(found, type) else found


def rewards(function, trajectories):
    """[N] floats. InvalidError: the function returns anything else."""
    out = [float(value) for value in function(trajectories)]
    require(
        len(out) == len(trajectories),
        f"it returned {len(out)} rewards for {len(trajectories)} trajectories",
    )
    require(all(map(math.isfinite, out)), f"a reward is not finite: {out}")
    return out


def answer(function, trajectories, index=0):
    """The answer's dict. An exception names the first trajectory that raises on its own, if any."""
    try:
        return {"rewards": rewards(function, trajectories)}
    except Exception as error:
        whole = {"error": f"{type(error).__name__}: {error}", "index": index}
    several = trajectories if len(trajectories) > 1 else ()
    alone = (answer(function, [one], i) for i, one in enumerate(several))
    return next((found for found in alone if "error" in found), whole)


def main():
    """Answers until standard input ends. What the function prints goes to standard error."""
    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)
        try:
            function = load(sys.argv[1])
        except Exception as error:
            sys.exit(print(f"{type(error).__name__}: {error}".replace("\n", " "), file=out))
        print("ok", file=out)
        for line in sys.stdin:
            print(json.dumps(answer(function, json.loads(line))), file=out)


if __name__ == "__main__":
    main()
