"""docs/deploy for Prometheus, Alertmanager and Grafana: by their tools and a Prometheus that scrapes a collector."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from gradcanary import wire
from support.collectors import Collector
from support.deploy import FOLDER, alertmanager, check, edited, tool
from support.ports import free_port
from support.receivers import Receiver, status
from support.streams import Session, Stream, collapsed, healthy, shared_client
from support.waiting import eventually

DOCUMENTS = "https://git.example/gradcanary/blob/main/"
NAME = re.compile(r"(?<![\w:])(?:\w+:)?(?:gradcanary|process)_\w+(?::\w+)?")


def rules():
    return [rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]]


def alerts():
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def panels():
    return [panel for panel in json.loads((FOLDER / "grafana.json").read_text())["panels"] if panel["type"] != "row"]


def filled(panel):
    """Return the queries of a panel, with variables as Grafana fills them in."""
    found = [target["expr"] for target in panel["targets"]]
    for name, value in (("$job", "gradcanary"), ("$run", ".*"), ("$__rate_interval", "5s")):
        found = [query.replace(name, value) for query in found]
    assert not [query for query in found if "$" in query]
    return found


def queries():
    return [query for panel in panels() for query in filled(panel)]


@contextmanager
def serving(*command):
    """Start a server on a free port, and yield its address once it is ready."""
    port = free_port()
    words = [*command, f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: is_ready(f"http://127.0.0.1:{port}/-/ready"))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def is_ready(url):
    try:
        return shared_client().get(url).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def collector(tmp_path_factory, new_db):
    """A collector that asks for tokens, with an endpoint that fails, a sick run and one that crashed."""
    folder, receiver = tmp_path_factory.mktemp("collector"), Receiver(*[status(500)] * 20)
    (folder / "rules.yaml").write_text("version: 1\npace: {wait_s: 0.1}\n")
    arguments = ("--auth", "--webhook", receiver.url, "--rules", str(folder / "rules.yaml"))
    collector = Collector(folder, arguments, db=new_db())
    collector.start()
    [ingest] = re.findall(r"GRADCANARY_TOKEN=(\S+)", "".join(collector.output))
    with httpx.Client(headers={"Authorization": f"Bearer {ingest}"}, timeout=60) as client:
        Session(collector.url, run="sick", client=client).send(Stream(collapsed(200, 8, (0, 2, 4), 120)))
        crashed = Session(collector.url, run="crashed", client=client)
        crashed.send(Stream(healthy(60, 4)))
        crash = wire.Crash("ValueError", "no", ("train.py:40 in <module>",), None, None)
        crashed.post("/end", wire.End("crashed", 59, "ValueError: no", crash)).raise_for_status()
        yield collector
    collector.kill()
    receiver.close()


@pytest.fixture
def token(collector, typed):
    created, secret, _ = typed("token", "create", "--scope", "read", "--name", "tests", "--data", collector.data)
    assert created == 0
    return secret.strip()


def test_each_alert_has_its_text_a_test_and_a_paragraph_of_the_runbook():
    tested = (FOLDER / "rules_test.yml").read_text()
    assert [name for name in alerts() if name not in tested] == []
    headings = re.findall(r"^### (\w+)$", (FOLDER / "runbook.md").read_text(), re.MULTILINE)
    assert headings == list(alerts()), "in the order of the rules"
    for name, rule in alerts().items():
        noted = rule["annotations"]
        assert noted["summary"]
        assert noted["description"]
        assert noted["runbook_url"] == f"{DOCUMENTS}docs/deploy/runbook.md#{name.lower()}"
        # Of an incident the severity is a label of its series.
        assert ("severity" in rule.get("labels", {})) is (name != "GradcanaryIncident")


def test_every_metric_of_dashboard_and_rules_is_one_of_the_collector(collector, token):
    scraped = shared_client().get(f"{collector.url}/metrics", headers={"Authorization": f"Bearer {token}"})
    there = set(re.findall(r"^(?:# TYPE )?(\w+)", scraped.text, re.MULTILINE))
    there |= {rule["record"] for rule in rules() if "record" in rule}
    for query in (*queries(), *(rule["expr"] for rule in rules())):
        named = set(NAME.findall(query)) - {"gradcanary"}
        assert named <= there, query
        assert named or "up{" in query, query


@pytest.fixture
def folder(collector, tmp_path):
    """The files as the how-to has them copied and edited: its commands up to that which starts Prometheus."""
    copied = shutil.copytree(FOLDER, tmp_path / "deploy")
    _, _, section = (FOLDER / "README.md").read_text().partition("\n## Prometheus\n")
    script, _, start = section.partition("```sh\n")[2].partition("```")[0].partition("prometheus --config.file=")
    assert start == "prometheus.yml\n"
    path = f"{Path(sys.executable).parent}:{Path(tool('promtool')).parent}:{os.environ['PATH']}"
    words = ("sh", "-e", "-c", script.replace(" DIR ", f" {collector.data} "))
    said = check(*words, cwd=copied, env={**os.environ, "PATH": path})
    assert "SUCCESS: 16 rules found" in said
    assert (copied / "gradcanary_token").stat().st_mode & 0o077 == 0
    assert "example/" not in (copied / "rules.yml").read_text().replace("https://YOUR.FORGE/", "")
    return copied


def test_a_prometheus_scrapes_a_sick_run_and_its_alerts_fire(collector, folder, tmp_path):
    config = {"127.0.0.1:8787": f"127.0.0.1:{collector.port}", "_interval: 15s": "_interval: 1s"}
    (folder / "prometheus.yml").write_text(edited("prometheus.yml", config))
    place = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}")
    with serving(tool("prometheus"), *place) as url:

        def ask(path, **parameters):
            answer = shared_client().get(f"{url}/api/v1/{path}", params=parameters).json()
            assert answer["status"] == "success", answer
            return answer["data"]

        def found():
            labels = [(each["state"], each["labels"]) for each in ask("alerts")["alerts"]]
            return {(state, each["alertname"], each.get("run"), each["severity"]) for state, each in labels}

        expected = {
            ("firing", "GradcanaryIncident", "sick", "critical"),
            ("firing", "GradcanaryRunCrashed", "crashed", "critical"),
            ("pending", "GradcanaryMessagesFail", None, "critical"),  # it waits ten minutes
        }
        eventually(lambda: expected <= found())
        assert {each for each in found() if each[0] == "firing"} <= expected, "a slow machine has others pending"
        assert [each["health"] for group in ask("rules")["groups"] for each in group["rules"]] == ["ok"] * 16

        def empty():
            return [query for query in queries() if not ask("query", query=query)["result"]]

        eventually(lambda: not empty())  # a rate takes two scrapes
        shown = ask("query", query=filled(next(each for each in panels() if each["type"] == "table"))[0])["result"]
        assert [(each["metric"]["run"], each["value"][1]) for each in shown] == [("sick", "3")]


SENT = (
    ("GradcanaryIncident", {"run": "sdxl", "rule": "collapse", "severity": "critical"}),
    ("GradcanaryIncident", {"run": "sdxl", "rule": "nonfinite", "severity": "critical"}),
    ("GradcanaryIncident", {"run": "sdxl", "rule": "no_update", "severity": "warning"}),  # inhibited
    ("GradcanaryIncident", {"run": "other", "rule": "no_update", "severity": "warning"}),
    ("GradcanaryStoreAway", {"instance": "a", "severity": "critical"}),
    ("GradcanaryIngestFailing", {"instance": "a", "severity": "critical"}),  # inhibited
    ("GradcanaryDiskFillsUp", {"instance": "a", "severity": "warning"}),
    ("GradcanaryDown", {"severity": "critical"}),
    ("GradcanaryInstanceDown", {"instance": "a", "severity": "warning"}),  # inhibited
)


def test_an_alertmanager_pages_once_for_a_run_and_says_nothing_of_what_follows(receiver_factory, tmp_path):
    pager, channel = receiver_factory(), receiver_factory()
    edits = {
        "group_wait: 30s": "group_wait: 2s",
        "routing_key_file: /etc/prometheus/pagerduty_key": f"routing_key: x\n        url: {pager.url}",
        "api_url_file: /etc/prometheus/slack_url": f"api_url: {channel.url}",
    }
    config = tmp_path / "alertmanager.yml"
    config.write_text(edited("alertmanager.yml", edits))
    place = (f"--config.file={config}", f"--storage.path={tmp_path}", "--cluster.listen-address=")
    with serving(*alertmanager(), *place) as url:
        alerts = [
            {
                "labels": {"alertname": name, "job": "gradcanary", **labels},
                "annotations": {"summary": summary(name, labels)},
            }
            for name, labels in SENT
        ]
        shared_client().post(f"{url}/api/v2/alerts", json=alerts).raise_for_status()
        paged = [json.loads(message.body)["payload"]["summary"] for message in pager.wait(2)]
        assert sorted(map(split, paged)) == [
            ["GradcanaryDown", "GradcanaryStoreAway"],
            ["sdxl collapse", "sdxl nonfinite"],
        ]
        known = shared_client().get(f"{url}/api/v2/alerts").json()
        assert sum(bool(each["status"]["inhibitedBy"]) for each in known) == 3
        [shown] = zip(*(json.loads(message.body)["attachments"] for message in channel.wait(2)), strict=True)
    assert sorted((each["title"], each["text"].strip()) for each in shown) == [
        ("firing: gradcanary", "GradcanaryDiskFillsUp."),
        ("firing: other", "other no_update."),
    ]


def summary(name, labels):
    return f"{labels['run']} {labels['rule']}" if "run" in labels else name


def split(paged):
    return sorted(paged.split("; "))
