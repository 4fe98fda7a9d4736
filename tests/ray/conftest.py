"""A Ray cluster of one node, which the tests of a process share, and scripts that join it."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from parallel.processes import free_port
from remote.things import Thing

import twinkle
from twinkle import DeviceGroup

RAY = Path(sys.executable).with_name("ray")
WAIT = """
import sys, time, ray
ray.init(logging_level="error", log_to_driver=False)
end = time.monotonic() + float(sys.argv[2])
while (count := sum(node["Alive"] for node in ray.nodes())) != int(sys.argv[1]):
    if time.monotonic() > end:
        sys.exit(f"{count} nodes are there")
    time.sleep(0.1)
print("there")
"""


class Nodes:
    """Nodes of a cluster, each a process group of its own: `ray stop` would end every Ray here."""

    def __init__(self):
        # A short path: sockets lie below it.
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.port = free_port()
        token = self.folder / "token"
        token.write_text(secrets.token_hex(32))
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_ADDRESS": f"127.0.0.1:{self.port}",
            "RAY_USAGE_STATS_ENABLED": "0",
            # Else a node starts, for every driver, as many workers as it has CPUs.
            "RAY_prestart_worker_first_driver": "0",
            # Else workers have a thirtieth of what other programs of a busy machine get.
            "RAY_worker_niceness": "0",
            "TWINKLE_DEVICE": "cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self._processes = []

    def start(self, *arguments, **more):
        """`ray start` with these arguments; it goes on in the background. What reads workers' logs
        takes more of a processor than all else of an idle node: it is left out."""
        number = len(self._processes)
        with (self.folder / f"node-{number}.log").open("w") as log:
            environment = {**os.environ, **self.environment, **more}
            del environment["RAY_ADDRESS"]
            self._processes.append(
                subprocess.Popen(
                    [
                        RAY, "start", *arguments, "--block", "--disable-usage-stats",
                        "--include-log-monitor=false",
                    ],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )  # fmt: skip

    def wait_for(self, count, seconds=240):
        """Until so many nodes are there."""
        end = time.monotonic() + seconds
        while not is_open(self.port):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)
        while True:  # one driver is as a rule enough, but a head that only starts may refuse it
            done = self.run(["-c", WAIT, count, end - time.monotonic()], check=False)
            if done.stdout.strip() == "there":
                return
            assert time.monotonic() < end, done.stdout + done.stderr + self.logs()

    def run(self, arguments, check=True, folder=None, **more):
        """Python with these arguments as a driver that joins, in a folder."""
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=folder,
            env={**os.environ, **self.environment, **more},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
        return done

    def logs(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("node-*.log")))

    def stop(self):
        while self._processes:
            process = self._processes.pop()  # and all else that its node consists of
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in pids_of(self.folder):  # processes that have left their group
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def is_open(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10):
        return True
    return False


def pids_of(text):
    """The processes whose command line has the text."""
    out = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(text).encode() in path.read_bytes():
                out.append(int(path.parent.name))
    return out


@contextmanager
def nodes():
    cluster = Nodes()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def empty_cluster():
    """A cluster without nodes."""
    pytest.importorskip("ray")
    with nodes() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster():
    """One node with 6 CPUs and no GPU."""
    pytest.importorskip("ray")
    with nodes() as cluster:
        cluster.start(
            "--head",
            "--node-ip-address=127.0.0.1",
            f"--port={cluster.port}",
            "--num-cpus=6",
            "--num-gpus=0",
            "--include-dashboard=false",
            "--object-store-memory=200000000",
            f"--temp-dir={cluster.folder / 't'}",
        )
        cluster.wait_for(1)
        _shared.append(cluster)
        yield cluster


_shared = []


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem):
    """The cluster ends after the last test of this folder, not with the process, for which its
    programs would take time from the tests of the others."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        while _shared:
            _shared.pop().stop()


@pytest.fixture(scope="session")
def driver(cluster):
    """driver(two=2): in its block this process is a driver with a group of two workers on CPUs."""

    @contextmanager
    def begun(**groups):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in cluster.environment.items():
                patch.setenv(name, value)
            placed = [DeviceGroup(name, ranks, "cpu") for name, ranks in groups.items()]
            twinkle.initialize(mode="ray", groups=placed)
            try:
                yield
            finally:
                twinkle.initialize()

    return begun


@pytest.fixture(scope="module")
def run(driver):
    """This process is a driver with these groups while the tests of a module run."""
    with driver(two=2, three=2, one=1):
        yield


@pytest.fixture(scope="module")
def thing(run):
    return Thing(remote_group="two")


@pytest.fixture(scope="module")
def eager(run):
    """One whose results are not lazy."""
    made = Thing(remote_group="two")
    made._lazy_collect = False
    return made
