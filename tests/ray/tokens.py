"""A driver with a cluster of its own, and then one that joins another's: ADDRESS TOKEN_FILE. Prints
as JSON who could join the first, where its token could be read, and what it left behind."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from remote.things import Thing

import twinkle
from twinkle import DeviceGroup

JOIN = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False); print('joined')"
VARIABLES = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


def can_join(address, seconds=60, **more):
    command = [sys.executable, "-c", JOIN, address]
    try:
        done = subprocess.run(
            command, env={**os.environ, **more}, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return False
    return "joined" in done.stdout


def who_can_join(address, token):
    """All try at the same time: Ray goes on trying for a while."""
    tries = {
        "with the token": {"seconds": 200},
        "without": {"RAY_AUTH_MODE": "disabled"},
        "with another": {"RAY_AUTH_TOKEN": "0" * len(token)},
    }
    with ThreadPoolExecutor() as threads:
        begun = {who: threads.submit(can_join, address, **given) for who, given in tries.items()}
        return {who: each.result() for who, each in begun.items()}


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes()


def begin():
    twinkle.initialize(mode="ray", groups=[DeviceGroup("one", 1, "cpu")])
    Thing(remote_group="one").step()


os.environ["RAY_ADDRESS"] = "local"
begin()
import ray  # noqa: E402 (as late as a script of a user)

address = ray.get_runtime_context().gcs_address
token = os.environ["RAY_AUTH_TOKEN"]
session = Path(ray._private.worker._global_node.get_session_dir_path())
files = [path for path in session.rglob("*") if path.is_file() and path.stat().st_size < 1 << 26]
told = {
    "joins": who_can_join(address, token),
    "files": len(files),
    "files with the token": [path.name for path in files if token.encode() in path.read_bytes()],
    "commands with the token": sum(token.encode() in line for line in command_lines()),
}
twinkle.initialize()
told["left"] = [name for name in VARIABLES if name in os.environ]
os.environ |= {"RAY_ADDRESS": sys.argv[1], "RAY_AUTH_TOKEN_PATH": sys.argv[2]}
begin()
told["joined another"] = ray.get_runtime_context().gcs_address
twinkle.initialize()
print(json.dumps(told))
