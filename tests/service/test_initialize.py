"""initialize(mode='http'): the service as a child of a Python process."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest

import twinkle
from tests.service.wire import wait_until
from twinkle import DeviceGroup, DeviceMesh, program
from twinkle.errors import InvalidError, NotAvailableError
from twinkle.logger import get_logger
from twinkle.service import _arguments, _completed


@pytest.fixture(autouse=True)
def local_again():
    if program.path() is None:
        pytest.skip("bin/twinkle is not built")
    yield
    twinkle.initialize()


def answers(url):
    try:
        with urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=10) as response:
            return response.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def test_it_starts_a_service_that_clients_find_and_ends_it(tiny_llama_dir, tmp_path):
    tinker = pytest.importorskip("tinker")
    names = ["tiny", "team/tiny"]
    url = twinkle.initialize(
        mode="http", model=tiny_llama_dir, names=names, state=tmp_path / "state", groups=[]
    )
    assert os.environ["TINKER_BASE_URL"] == os.environ["TWINKLE_SERVER_URL"] == url
    client = tinker.ServiceClient(api_key="tml-test")
    sampler = client.create_sampling_client(base_model="team/tiny").result()
    assert sampler.get_base_model() == "team/tiny"
    twinkle.initialize()
    assert not answers(url)
    assert "TINKER_BASE_URL" not in os.environ


def test_groups_of_several_ranks_are_told_that_the_service_is_one_process(
    tiny_llama_dir, tmp_path, monkeypatch
):
    told = []
    monkeypatch.setattr(get_logger(), "warning", told.append)
    start = {
        "mode": "http",
        "model": tiny_llama_dir,
        "names": ["tiny"],
        "state": tmp_path / "state",
    }
    model, sampler = DeviceGroup("model", 4, "cpu"), DeviceGroup("sampler", 2, "cpu")
    one = DeviceGroup("one", 1, "cpu")
    assert answers(twinkle.initialize(groups=[model, one, sampler], **start))
    (text,) = told
    assert text.startswith(
        "infra: the service runs on one process in this version, so groups model (4 ranks), "
        "sampler (2 ranks) of mode 'http' have one rank there: "
    )
    assert answers(twinkle.initialize(groups=[one], **start)) and len(told) == 1


def test_several_processes_and_meshes_of_several_ranks_are_refused(tmp_path, monkeypatch):
    start = {"mode": "http", "state": tmp_path / "state"}
    said = "global_device_mesh has 2 ranks, but the service of mode 'http' runs on one process in"
    for sizes in ({"dp_size": 2}, {"fsdp_size": 2}, {"tp_size": 2}):
        mesh = DeviceMesh.from_sizes(**sizes)
        with pytest.raises(NotAvailableError, match=said):
            twinkle.initialize(global_device_mesh=mesh, **start)
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = "mode 'http' starts one service, .* but 2 processes are running: start the script with"
    for mesh in (None, DeviceMesh.from_sizes(dp_size=2)):
        with pytest.raises(NotAvailableError, match=said):
            twinkle.initialize(global_device_mesh=mesh, **start)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_replicas": 2}, "there is no option 'num_replicas'"),
        ({"model": "/no/such"}, "/no/such"),
        ({"root_path": "x", "model": "tiny"}, "root_path is 'x', it must begin with '/'"),
        ({"prot": 3}, "there is no option 'prot'; did you mean 'port'"),
        ({"port": 1.5}, "cli: port is '1.5', it must be an integer of at least 0"),
        ({"max_given": 0}, "cli: max_given is '0', it must be an integer of at least 1"),
        ({"port": [None, b"1"]}, "service: port is b'1', it must be a text or a number"),
    ],
)
def test_what_the_service_refuses_is_the_error_and_told_once(options, said, tmp_path, capfd):
    with pytest.raises(InvalidError, match=said):
        twinkle.initialize(mode="http", state=tmp_path, **options)
    assert "twinkle: " not in capfd.readouterr().err


def test_a_service_without_a_url_is_ended(tiny_llama_dir, tmp_path):
    with tempfile.TemporaryDirectory() as folder:  # pytest's paths are too long
        place = Path(folder) / "s"
        options = {"model": tiny_llama_dir, "host": "none", "unix_socket": place}
        with pytest.raises(InvalidError, match="service: host is 'none', it must be an IP address"):
            twinkle.initialize(mode="http", state=tmp_path, **options)
        assert not place.exists()


def test_a_state_with_keys_needs_one_before_it_is_served(
    request, tiny_llama_dir, tmp_path, monkeypatch, capfd
):
    tinker = pytest.importorskip("tinker")
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "twinkle-state"
    run = request.getfixturevalue("twinkle")  # the program; here the name is the package's
    key = run("keys", "create", "--tenant", "a", "--state", state).stdout.strip()
    options = {"mode": "http", "model": tiny_llama_dir, "names": ["tiny"]}
    for where in ({}, {"state": "twinkle-state"}, {"state": state}, {"auth": None, "config": None}):
        with pytest.raises(InvalidError, match=f"the state {state} has keys.* TINKER_API_KEY"):
            twinkle.initialize(**options, **where)
    assert not (state / "journal").exists()
    monkeypatch.setenv("TINKER_API_KEY", key)
    twinkle.initialize(**options)
    told = [capfd.readouterr().err]

    def is_told(text):  # a thread passes it on
        told.append(capfd.readouterr().err)
        return text in "".join(told)

    begin = f"info twinkle {twinkle.__version__}, state: {state}, "
    wait_until(partial(is_told, f"{begin}auth: keys, of which 1 is valid\n"))
    client = tinker.ServiceClient()
    assert client.create_sampling_client(base_model="tiny").get_base_model() == "tiny"
    monkeypatch.delenv("TINKER_API_KEY")
    assert answers(twinkle.initialize(auth="keys", **options))
    assert answers(twinkle.initialize(auth="open", **options))
    wait_until(partial(is_told, " warning auth is open although"))
    assert "".join(told).count("auth is open although") == 1


def test_true_false_and_numbers_are_told_as_the_command_line_takes_them(tmp_path):
    options = {"prefix_cache": False, "compress": True, "sampling_share": 0.25, "hold_seconds": 9}
    printed = subprocess.run(
        [sys.executable, "-m", "twinkle", "serve", "--print-config", *_arguments(options)],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    ).stdout  # fmt: skip
    told = dict(line.split(": ") for line in printed.splitlines() if line[0] != "#")
    assert {name: told[name] for name in options} == {
        "prefix_cache": "false", "compress": "true", "sampling_share": "0.25", "hold_seconds": "9",
    }  # fmt: skip


def test_options_are_of_mode_http_alone():
    with pytest.raises(InvalidError, match="initialize has no port in mode 'local'"):
        twinkle.initialize(port=3)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_script_that_names_no_model_stays_up_until_it_is_stopped(end, tiny_llama_dir, tmp_path):
    """As the documents' server.py, but for the port, which others may have."""
    script = """
import signal; signal.signal(signal.SIGINT, signal.default_int_handler)
import twinkle
from twinkle import DeviceGroup
groups = [DeviceGroup(name="model", ranks=4, device_type="cuda"),
          DeviceGroup(name="sampler", ranks=4, device_type="cuda")]
twinkle.initialize(mode="http", groups=groups, port=0)
"""
    variables = {**os.environ, "TWINKLE_SERVER_MODEL": str(tiny_llama_dir)}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=variables, cwd=tmp_path, stdout=subprocess.PIPE,
        text=True,
    ) as server:  # fmt: skip
        try:
            said = server.stdout.readline()
            found = re.fullmatch(
                rf"twinkle serves {tiny_llama_dir} at (\S+); Ctrl-C stops it\n", said
            )
            assert found, said
            url = found[1]
            assert answers(url)
            server.send_signal(end)
            assert server.wait(60) == (0 if end is signal.SIGINT else -end)
        finally:
            server.kill()
    wait_until(lambda: not answers(url))


def test_a_script_that_fails_does_not_stay_up(tiny_llama_dir, tmp_path):
    script = "import twinkle; twinkle.initialize(mode='http', port=0); raise SystemError"
    variables = {**os.environ, "TWINKLE_SERVER_MODEL": str(tiny_llama_dir)}
    run = subprocess.run([sys.executable, "-c", script], env=variables, cwd=tmp_path, timeout=120)
    assert run.returncode == 1


def test_the_port_is_8000_where_no_model_is_named(monkeypatch):
    monkeypatch.delenv("TWINKLE_SERVER_MODEL", raising=False)
    assert _completed({"names": None}) == ({"port": 8000}, True)
    assert _completed({"model": "a"}) == ({"model": "a", "port": 0}, False)
    assert _completed({"config": "a.yaml"}) == ({"config": "a.yaml"}, False)


@pytest.mark.parametrize("end", [None, signal.SIGKILL])
def test_it_ends_with_its_process_however_that_ends(end, tiny_llama_dir, tmp_path):
    script = f"""
import sys, twinkle
print(twinkle.initialize(mode="http", model={tiny_llama_dir!r}, state={str(tmp_path)!r}))
sys.stdout.flush()
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        url = parent.stdout.readline().strip()
        assert answers(url)
        if end is None:
            parent.stdin.close()
            assert parent.wait(60) == 0
        else:
            parent.send_signal(end)
            parent.wait(60)
    limit = time.monotonic() + 30
    while answers(url) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not answers(url)
