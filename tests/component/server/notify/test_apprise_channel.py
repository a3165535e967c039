"""Messages through apprise's own code to real receivers; its addresses are nobody's to read."""

import asyncio
import contextlib
import email.policy
import json
import logging
import re
import socketserver
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme
from apprise.plugins import opsgenie, pagerduty
from sqlalchemy import select

from gradcanary_server.errors import SettingsError
from gradcanary_server.notify import apprise_channel, endpoints
from gradcanary_server.notify.dispatcher import Dispatcher
from gradcanary_server.notify.sender import Sender
from gradcanary_server.notify.webhook import TransportError
from gradcanary_server.storage.schema import attempt, endpoint
from support.dialects import one_store
from support.receivers import Receiver, accepted, hang, status
from support.server.stores import SLOW, URL
from support.server.transitions import fired
from support.streams import Session, Stream, collapsed
from support.waiting import eventually

PASSWORD = "hunter2hunter2"
DATA = {
    "incident": 31,
    "run": "sdxl",
    "rule": "collapse",
    "severity": "critical",
    "state": "open",
    "title": "[critical] sdxl: 3 parameters collapsed (#31)",
    "also": [],
    "explanation": {
        "what": "3 of 24 parameters (<b>a</b>, *x*) fell.",
        "since": "step 728 (opened 2026-11-20 10:00 UTC)",
        "do_first": "Check it.",
        "why": "The learning rate.",
        "evidence": [],
        "more": "lr = 1e-4",
    },
    "url": "http://127.0.0.1:8787/runs/sdxl?incident=31",
    "runbook_url": "http://127.0.0.1:8787/runbooks/collapse",
}


def message(kind="opened", **changes):
    return json.dumps({"type": f"gradient.collapse.{kind}", "timestamp": "", "data": {**DATA, **changes}}).encode()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine is no service that hangs."""
    monkeypatch.setattr(apprise_channel, "TIMEOUT_S", 60.0)


def opened(url):
    [channel] = apprise_channel.open_channels([url]).values()
    channel.target.socket_read_timeout = 60.0
    channel.target.request_rate_per_sec = 0
    return channel


def notify(channel, body=None, picture=None):
    # In a thread of its own: the browser tests leave an event loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, apprise_channel.send_message(channel, body or message(), picture)).result()


def posted(receiver):
    return [json.loads(each.body) for each in receiver.got]


def test_a_layers_name_calls_nobody():
    parts = {**DATA["explanation"], "what": "@everyone <!channel> fell", "why": "@here"}
    body = json.loads(message(explanation=parts))
    assert not re.search("@everyone|<!channel|@here", apprise_channel.render(body)[1])


def test_an_incident_as_text(receiver_factory):
    receiver = receiver_factory()
    channel = opened(f"json://ada:{PASSWORD}@127.0.0.1:{receiver.port}/hook")
    notify(channel)
    notify(channel, message("resolved", state="resolved"))
    notify(channel, json.dumps({"type": "gradcanary.test", "data": {"summary": "A test.", "url": URL}}).encode())
    first, last, test = posted(receiver)
    assert first["title"] == "[critical] sdxl: 3 parameters collapsed (#31)"
    assert first["message"].splitlines() == [
        "opened: 3 of 24 parameters (<b>a</b>, *x*) fell.",
        "Since: step 728 (opened 2026-11-20 10:00 UTC)",
        DATA["url"],
        "Do first: Check it.",
        "Why: The learning rate.",
        "lr = 1e-4",
        f"Runbook: {DATA['runbook_url']}",
    ]
    assert [each["type"] for each in (first, last, test)] == ["failure", "success", "info"]
    assert "apprise" not in str(receiver.got), "no pictures from elsewhere"
    assert test["message"] == f"A test.\n{URL}"


def test_ntfy_discord_and_slack_take_it_within_their_limits(receiver_factory):
    receiver = receiver_factory(status(200), status(204))
    notify(opened(f"ntfy://127.0.0.1:{receiver.port}/gradients"))
    for url, attribute in (
        ("discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js", "notify_url"),
        ("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", "webhook_url"),
    ):
        channel = opened(url)
        setattr(channel.target, attribute, receiver.url)
        with contextlib.suppress(TransportError):  # nobody here says "ok", as Slack does
            notify(channel, message(explanation={**DATA["explanation"], "why": "é" * 3000}))
    topic, discord, slack = posted(receiver)
    assert (topic["topic"], topic["title"]) == ("gradients", "[critical] sdxl: 3 parameters collapsed (#31)")
    [embed] = discord.get("embeds") or [{"description": discord["content"]}]
    assert len(embed["description"]) <= 2000
    assert DATA["url"] in embed["description"]
    assert "lr = 1e-4" in json.dumps(slack)


class Postbox(socketserver.StreamRequestHandler):
    """A mail server that takes each message, into ``server.got``."""

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        for line in self.rfile:
            word = line.strip().upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.got.append(email.message_from_bytes(b"".join(lines), policy=email.policy.default))
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")


def test_mail_of_an_incident_is_a_thread_and_text():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Postbox) as server:
        server.got, port = [], server.server_address[1]
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        channel = opened(f"mailto://127.0.0.1:{port}?from=a@example.com&to=b@example.com&smtp=127.0.0.1&mode=insecure")
        notify(channel, picture=b"\x89PNG of it")
        notify(channel, message("resolved", state="resolved", title="[resolved] sdxl: 4 parameters collapsed (#31)"))
        server.shutdown()
    assert [mail["subject"] for mail in server.got] == [
        "[critical] sdxl: 3 parameters collapsed (#31)",
        "[resolved] sdxl: 4 parameters collapsed (#31)",
    ]
    for header in ("References", "In-Reply-To"):
        assert [mail[header] for mail in server.got] == ["<gradcanary-31@gradcanary>"] * 2
    assert [mail["to"] for mail in server.got] == ["b@example.com"] * 2
    told = server.got[0].get_body(("plain",)).get_content()
    assert DATA["explanation"]["what"] in told
    assert told.splitlines()[2] == DATA["url"]
    assert "lr = 1e-4" in told
    pictures = [[part.get_content() for part in mail.iter_attachments()] for mail in server.got]
    assert pictures == [[b"\x89PNG of it"], []]
    assert [part.get_filename() for part in server.got[0].iter_attachments()] == ["incident.png"]


def test_a_message_whose_picture_is_refused_is_sent_once_and_the_next_attempt_is_plain(receiver_factory, caplog):
    receiver = receiver_factory(status(413))
    channel = opened(f"json://127.0.0.1:{receiver.port}/{PASSWORD}")
    assert apprise_channel.pictured_incident(channel, message()) == 31
    with pytest.raises(TransportError):
        notify(channel, picture=b"png")
    assert len(posted(receiver)) == 1, "it may have the text"
    assert apprise_channel.pictured_incident(channel, message()) is None
    [line] = [record.message for record in caplog.records if record.name == apprise_channel.__name__]
    assert line == "JSON failed with a picture, and gets none for an hour"


def test_teams_takes_it_over_tls(receiver_factory, tmp_path, monkeypatch):
    authority, receiver = trustme.CA(), receiver_factory(status(202))
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "authority.pem"))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    receiver.server.socket = server.wrap_socket(receiver.server.socket, server_side=True)
    notify(opened(f"workflows://127.0.0.1:{receiver.port}/643a03ae03c5/{PASSWORD}"))
    [card] = posted(receiver)
    told = card["attachments"][0]["content"]["body"][-1]["text"]
    lines = re.sub(r"\\(.)", r"\1", told).splitlines()  # Markdown, in which each sign may be escaped
    assert lines[2:-1] == [DATA["url"], "Do first: Check it.", "Why: The learning rate.", "lr = 1e-4"]
    assert lines[-1] == f"Runbook: {DATA['runbook_url']}"


def test_pagerduty_resolves_what_it_opened(receiver_factory, monkeypatch):
    receiver = receiver_factory(status(202), status(202))
    monkeypatch.setitem(pagerduty.PAGERDUTY_API_LOOKUP, pagerduty.PagerDutyRegion.US, receiver.url)
    channel = opened("pagerduty://0123456789abcdef@abcdefghij?action=map")
    notify(channel, message(state="ended"))
    notify(channel, message("ended", state="ended", title="[ended] sdxl: 3 parameters collapsed (#31)"))
    first, last = posted(receiver)
    assert [each["event_action"] for each in (first, last)] == ["trigger", "resolve"]
    assert first["dedup_key"] == last["dedup_key"] == "gradcanary-31"
    assert first["payload"]["summary"].startswith("[critical] sdxl: 3 parameters collapsed (#31)")


def test_opsgenie_closes_what_it_opened(receiver_factory, monkeypatch):
    receiver = receiver_factory(*[accepted(b'{"requestId": "r-1"}')] * 2)
    monkeypatch.setitem(opsgenie.OPSGENIE_API_LOOKUP, opsgenie.OpsgenieRegion.US, receiver.url)
    channel = opened("opsgenie://0123456789abcdef?action=map")
    notify(channel)
    notify(channel, message("resolved", state="resolved", title="[resolved] sdxl: 4 parameters collapsed (#31)"))
    assert posted(receiver)[0]["alias"] == "gradcanary-31"
    assert [each.path.partition("?")[0].rpartition("/")[2] for each in receiver.got] == ["hook", "close"]


@pytest.mark.parametrize(
    ("given", "severity", "sends_ended"),
    [
        ("pagerduty://0123456789abcdef@abcdefghij?action=map", "warning", True),
        ("pagerduty://0123456789abcdef@abcdefghij", "warning", False),
        ("critical=opsgenie://0123456789abcdef?action=map", "critical", True),
        ("json://127.0.0.1/?a=b", "warning", False),
        ("critical,ended=json://127.0.0.1/", "critical", True),
        ("ended=json://127.0.0.1/", "warning", True),
    ],
)
def test_services_that_keep_an_incident_open_get_its_end(given, severity, sends_ended):
    [endpoint] = apprise_channel.open_channels([given])
    assert (endpoint.min_severity, endpoint.sends_ended) == (severity, sends_ended)


def test_a_service_is_told_like_any_endpoint(store, receiver_factory, monkeypatch):
    monkeypatch.setattr("gradcanary_server.notify.webhook.FIRST_RETRY_S", 0.1)
    receiver = receiver_factory(status(500))
    given = apprise_channel.open_channels([f"critical=json://ada:{PASSWORD}@127.0.0.1:{receiver.port}/{PASSWORD}"])
    with store.database.write() as connection:
        for each in given:
            assert endpoints.upsert_configured(connection, each, None, store.database.now(connection)) is None
    courier = Sender({channel.key: channel for channel in given.values()})
    dispatcher = Dispatcher(store.database, SLOW, URL, sender=courier)
    store.record(fired(0, severity="warning", rule="explosion"), fired(0))
    dispatcher.start()
    try:
        receiver.wait(2)
        eventually(lambda: len(store.rows(select(attempt))) == 2)
    finally:
        dispatcher.stop()
    assert [each["message"].split(":")[0] for each in posted(receiver)] == ["opened"] * 2
    failed, delivered = store.rows(select(attempt).order_by(attempt.c.number))
    assert failed["error"] == "JSON: Failed to send JSON POST notification: Internal server error., error=500."
    assert (delivered["status"], delivered["error"]) == (None, None)
    [row] = store.rows(select(endpoint))
    assert (row["kind"], row["name"], row["min_severity"], row["secret"]) == ("apprise", "JSON", "critical", "")
    assert PASSWORD not in str(dict(row))


def test_apprise_errors_are_reported_without_the_address(receiver_factory):
    receiver = receiver_factory(status(403))
    with pytest.raises(TransportError) as failed:
        notify(opened(f"ntfy://127.0.0.1:{receiver.port}/{PASSWORD}"))
    assert str(failed.value) == "ntfy: Failed to send ntfy notification to topic '****': error=403."
    assert not logging.getLogger("apprise").propagate, "what it logs names topics"
    url = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/%23general"
    assert (
        apprise_channel.redact_address("slack: TIiajkdnlazkcOXrIdevi7FQ to #general at T1JJ3T3L2", url)
        == "slack: **** to #**** at ****"
    )


def test_a_service_that_does_not_answer_is_left_alone(receiver_factory, monkeypatch):
    monkeypatch.setattr(apprise_channel, "TIMEOUT_S", 0.3)
    receiver = receiver_factory(hang)
    channel = opened(f"json://127.0.0.1:{receiver.port}/?rto=20")
    with pytest.raises(TransportError, match=r"no answer within 0\.3 s") as first:
        notify(channel, picture=b"png")
    assert apprise_channel.pictured_incident(channel, message()) is None, "the next attempt is plain"
    assert first.value.maybe_delivered, "it may have arrived"
    with pytest.raises(TransportError, match="has not ended yet") as second:
        notify(channel)
    assert not second.value.maybe_delivered, "nothing was sent"
    receiver.release.set()
    eventually(lambda: not channel.under_way)


def test_a_service_that_hung_is_told_again_once_it_answers(receiver_factory, monkeypatch):
    """Its first connection stays open, as behind a firewall that forgot it: that attempt never ends."""
    monkeypatch.setattr(apprise_channel, "HUNG_S", 0.5)
    monkeypatch.setattr(apprise_channel, "TIMEOUT_S", 0.3)
    mute = receiver_factory(hang)
    channel = opened(f"json://127.0.0.1:{mute.port}/")
    with pytest.raises(TransportError, match="no answer"):
        notify(channel)
    mute.server.shutdown()
    mute.server.server_close()
    monkeypatch.setattr(apprise_channel, "TIMEOUT_S", 60.0)
    time.sleep(0.5)
    with contextlib.closing(Receiver(port=mute.port)) as answering:
        notify(channel)
        assert len(posted(answering)) == 1
    assert len(channel.under_way) == 1, "the first one, still"


def test_attempts_that_never_end_are_bounded(receiver_factory, monkeypatch):
    monkeypatch.setattr(apprise_channel, "HUNG_S", 0.0)
    monkeypatch.setattr(apprise_channel, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(apprise_channel, "MAX_HUNG", 2)
    receiver = receiver_factory(hang, hang)
    channel = opened(f"json://127.0.0.1:{receiver.port}/")
    for _ in range(2):
        with pytest.raises(TransportError, match="no answer"):
            notify(channel)
    for _ in range(3):
        with pytest.raises(TransportError, match="2 attempts before have not ended yet"):
            notify(channel)
    assert len(receiver.got) == len(channel.under_way) == 2
    receiver.release.set()
    eventually(lambda: not channel.under_way)
    notify(channel)
    assert len(receiver.got) == 3


def test_an_address_that_apprise_does_not_know_is_refused_and_not_repeated(monkeypatch):
    for url in (f"nonsense://{PASSWORD}", f"slack://{PASSWORD}", PASSWORD):
        with pytest.raises(SettingsError, match="--notify number 2") as refused:
            apprise_channel.open_channels(["json://127.0.0.1", url])
        assert PASSWORD not in str(refused.value)
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(SettingsError, match=r"gradcanary\[notify\]"):
        apprise_channel.open_channels(["json://127.0.0.1"])


@one_store
@pytest.mark.slow
def test_the_command_line_is_the_list_of_the_operators_endpoints(collector_factory, receiver_factory, tmp_path):
    hook, loud, service = receiver_factory(), receiver_factory(), receiver_factory(status(500))
    (tmp_path / "rules.yaml").write_text("version: 1\npace: {wait_s: 0.1, interval_s: 600}\n")
    file = tmp_path / "notify"
    file.write_text(f"# on call\n\njson://ada:{PASSWORD}@127.0.0.1:{service.port}/x\n")
    rules = ("--rules", str(tmp_path / "rules.yaml"))
    collector = collector_factory(
        *rules, "--webhook", hook.url, "--webhook", f"critical={loud.url}", env={"GRADCANARY_NOTIFY_FILE": str(file)}
    )
    Session(collector.url, run="sdxl").send(Stream(collapsed(160, 12, (0, 2), 130)))
    for receiver in (hook, loud, service):
        receiver.wait(2 if receiver is service else 1)
    assert posted(service)[0]["title"] == "[critical] sdxl: 2 parameters collapsed (#1)"
    listed = collector.get("/api/v1/endpoints").json()["endpoints"]
    assert [(each["kind"], each["min_severity"], each["url"], each["name"]) for each in listed] == [
        ("webhook", "warning", hook.url, ""),
        ("webhook", "critical", loud.url, ""),
        ("apprise", "warning", None, "JSON"),
    ]
    said = "".join(collector.output)
    assert f"incidents are sent to {loud.url}, critical and above\nincidents are sent to JSON\n" in said
    assert f"webhook secret of {loud.url} (shown once): whsec_" in said
    collector.stop()
    collector.arguments = (*rules, "--webhook", loud.url)
    collector.env.pop("GRADCANARY_NOTIFY_FILE")
    collector.start()
    listed = collector.get("/api/v1/endpoints").json()["endpoints"]
    assert [(each["state"], each["min_severity"]) for each in listed] == [
        ("disabled", "warning"),
        ("enabled", "warning"),
        ("disabled", "warning"),
    ]
    assert {each["reason"] for each in listed} == {None, "the command line did not name it at the last start"}
    collector.stop()
    files = [path.read_bytes() for path in Path(collector.data).rglob("*") if path.is_file()]
    assert not any(PASSWORD.encode() in content for content in files)
    assert PASSWORD not in "".join(collector.output) + listed[2]["name"]
