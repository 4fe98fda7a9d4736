"""The snippets of docs/operating.md for a supervisor, probes, a proxy and Prometheus."""

import configparser
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def default(option):
    """As docs/options.md tells it."""
    text = (ROOT / "docs/options.md").read_text()
    return re.search(rf"^\| `{option}` \| `([^`]*)`", text, re.MULTILINE)[1]


def ends_after():
    """The seconds after which SIGTERM has ended a server, at most."""
    source = (ROOT / "twinkle/cli/serve.cpp").read_text()
    ours = re.findall(r"std::chrono::seconds k(?:Answered|Saved)\{(\d+)\};", source)
    assert len(ours) == 2
    return int(default("hold_seconds")) + sum(map(int, ours))


@pytest.fixture(scope="module")
def snippets():
    """The unit, the probes, the proxy's location and Prometheus' configuration."""
    text = (ROOT / "docs/operating.md").read_text()
    begin = "\n## A supervisor, probes, a proxy and Prometheus\n"
    found = re.findall(
        r"^```(\w+)\n(.*?)^```", text.partition(begin)[2].partition("\n## ")[0], re.M | re.S
    )
    assert [language for language, _ in found] == ["ini", "yaml", "nginx", "yaml"]
    return [text for _, text in found]


def test_the_unit_lets_the_server_end_and_is_started_again_where_that_helps(snippets):
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string(snippets[0])
    assert unit.sections() == ["Unit", "Service", "Install"]
    assert unit["Unit"]["Wants"] == unit["Unit"]["After"], "else it need not be there"
    service = unit["Service"]
    program, *words = service["ExecStart"].split()
    paths = [program, service["WorkingDirectory"], words[words.index("--config") + 1]]
    assert all(path.startswith("/") for path in paths) and words[0] == "serve"
    assert int(service["TimeoutStopSec"]) > ends_after()
    assert (service["KillSignal"], service["Restart"]) == ("SIGTERM", "on-failure")
    assert service["RestartPreventExitStatus"] == "2", "a wrong option is wrong again"


def test_probes_ask_paths_that_are_there_and_leave_the_server_its_time(snippets):
    probes = yaml.safe_load(snippets[1])
    asked = {name: probe["httpGet"]["path"] for name, probe in probes.items()}
    assert asked == {
        "startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz",
    }  # fmt: skip
    routes = (ROOT / "twinkle/server/routes.def").read_text()
    for probe in probes.values():
        assert f'ROUTE(GET, "{probe["httpGet"]["path"]}", ' in routes
        assert str(probe["httpGet"]["port"]) == default("port")
        assert probe["timeoutSeconds"] >= 5
    text = (ROOT / "docs/operating.md").read_text()
    assert int(re.search(r"`terminationGracePeriodSeconds: (\d+)`", text)[1]) > ends_after()


def test_the_proxy_hands_on_what_comes_as_it_came(snippets):
    place, statements = re.fullmatch(
        r"location (\S+) \{\n(.*)\}\nlocation @busy \{ return 429; \}\n", snippets[2], re.S
    ).groups()
    said = dict(re.fullmatch(r" +(\w+) (.+);", line).groups() for line in statements.splitlines())
    text = (ROOT / "docs/operating.md").read_text()
    assert place == re.search(r"before a server with `root_path: (\S+)`", text)[1] + "/"
    assert said["proxy_pass"] == f"http://127.0.0.1:{default('port')}", "a path would replace it"
    assert int(said["proxy_read_timeout"].rstrip("s")) > int(default("hold_seconds")) + 5
    assert said["client_max_body_size"] == "0", "what a proxy refuses uses no number up"
    assert said["error_page"] == "502 504 =429 @busy", "the SDK polls again at once after a 5xx"
    for name in ("proxy_buffering", "proxy_request_buffering", "gzip"):
        assert said[name] == "off"


def test_prometheus_asks_with_a_key_from_a_file(snippets):
    (job,) = yaml.safe_load(snippets[3])["scrape_configs"]
    assert job["authorization"]["credentials_file"].startswith("/")
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{default('port')}"]}]
    assert "metrics_path" not in job, "/metrics is its default, and ours"
