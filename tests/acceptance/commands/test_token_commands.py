"""A collector that other machines reach, over TLS: what commands and agents need there, and what it never says.

One process for all of it; ``trustme`` is the authority that nobody else believes.
"""

import hashlib
import json
import shutil
import socket
import subprocess
import sys
import time

import pytest
import trustme
from starlette.testclient import TestClient

from gradcanary import wire
from gradcanary.export.transport import Transport, UnreachableError
from gradcanary_dashboard.app import create_app
from support.collectors import Collector
from support.guarded import WEBHOOK_SECRET, Guarded
from support.streams import Session, Stream, collapsed

LAYERS, AT = 12, 130
NO_TOKEN = "--token or GRADCANARY_TOKEN"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    collector = Guarded(tmp_path_factory.mktemp("guarded"))
    collector.start()
    yield collector
    collector.kill()


@pytest.fixture(scope="module")
def admin(guarded):
    return guarded.said("token to administer")


@pytest.fixture(scope="module")
def ingest(guarded):
    return guarded.said("where trainings run").removeprefix("GRADCANARY_TOKEN=")


@pytest.fixture(scope="module")
def run(guarded, ingest):
    """Return a run that has collapsed."""
    with guarded.client(ingest) as client:
        Session(guarded.url, run="sdxl", client=client).send(Stream(collapsed(AT + 30, LAYERS, (0, 2), AT)))
    return "sdxl"


@pytest.fixture
def typed(typed, guarded, monkeypatch):
    monkeypatch.setenv("GRADCANARY_URL", guarded.url)
    monkeypatch.setenv("GRADCANARY_CA_FILE", str(guarded.authority))
    monkeypatch.delenv("GRADCANARY_TOKEN", raising=False)
    return typed


def test_first_start_shows_how_to_sign_in(guarded, admin, ingest):
    said = "".join(guarded.output)
    address = f"https://{socket.gethostname()}:{guarded.port}"
    assert f"sign in at {address} (shown once): gc_admin_" in said
    assert f"export GRADCANARY_URL={address} GRADCANARY_TOKEN=gc_ingest_" in said
    with guarded.client(admin) as client:
        listed = client.get("/api/v1/tokens").json()["tokens"]
    assert [(each["name"], each["scope"]) for each in listed][:2] == [
        ("first administrator", "admin"),
        ("agents", "ingest"),
    ]


def test_an_agent_gets_in_with_its_token_and_the_authority(guarded, ingest, monkeypatch, tmp_path):
    hello = wire.dump(Stream(collapsed(4, LAYERS, (), 2)).hello())
    transport = Transport(guarded.url, ingest, "agent", "one")
    with pytest.raises(UnreachableError, match="certificate verify failed"):
        transport.send("PUT", "", hello, compress=True)
    monkeypatch.setenv("GRADCANARY_CA_FILE", "/no/such.pem")
    with pytest.raises(UnreachableError, match=r"GRADCANARY_CA_FILE='/no/such\.pem' is not a certificate"):
        Transport(guarded.url, ingest, "agent", "one").send("PUT", "", hello, compress=True)
    renewed = tmp_path / "authority.pem"
    trustme.CA().cert_pem.write_to_path(str(renewed))
    monkeypatch.setenv("GRADCANARY_CA_FILE", str(renewed))
    transport = Transport(guarded.url, ingest, "agent", "one")
    with pytest.raises(UnreachableError, match="certificate verify failed"):
        transport.send("PUT", "", hello, compress=True)
    shutil.copy(guarded.authority, renewed)
    assert transport.send("PUT", "", hello, compress=True).status == 200, "an agent reads it again as it runs"
    transport.close()
    monkeypatch.setenv("GRADCANARY_CA_FILE", str(guarded.authority))
    for token, status in ((ingest, 200), (None, 401), ("gc_ingest_wrong", 401)):
        transport = Transport(guarded.url, token, "agent", "one")
        answer = transport.send("PUT", "", hello, compress=True)
        transport.close()
        assert answer.status == status
        assert bool(answer.message) == (status != 200)


def test_the_author_of_a_change_is_the_token(typed, admin, monkeypatch):
    monkeypatch.setenv("GRADCANARY_TOKEN", admin)
    for author, given in (("first administrator", ()), ("ada", ("--by", "ada"))):
        made = typed("silence", "--run", "of-the-author", "--for", "1h", *given)[1].split()[1]
        assert f"  {author}  " in typed("silences")[1]
        assert typed("unsilence", made)[0] == 0


def test_every_command_says_what_to_do_without_a_token(run, typed, ingest, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\n")
    for words in (
        ("incidents",), ("incidents", "1"), ("ack", "1", "--by", "ada"), ("silences",), ("unsilence", "1"),
        ("silence", "--run", "*", "--for", "1h", "--by", "ada"), ("test-rules", str(rules), "--run", run),
    ):  # fmt: skip
        for token in ((), ("--token", "gc_admin_wrong")):
            status, said, error = typed(*words, *token)
            assert (status, said) == (2, ""), words
            assert NO_TOKEN in error, words
            assert "gc_admin_wrong" not in error
    status, _, error = typed("incidents", "--token", ingest)
    assert (status, "has the scope ingest, and this takes read" in error) == (2, True)
    _, _, error = typed("incidents", "--token", "gc_\x07read")
    assert "--token is not usable: it must be printable ASCII" in error


def test_a_command_names_the_authority_or_the_scheme_that_is_missing(typed, guarded, monkeypatch):
    status, _, error = typed("incidents", "--url", guarded.url.replace("https", "http"))
    assert (status, f"its address is {guarded.url}" in error) == (1, True)
    monkeypatch.delenv("GRADCANARY_CA_FILE")
    status, _, error = typed("incidents")
    assert (status, "name the certificate of its authority in GRADCANARY_CA_FILE" in error) == (1, True)
    assert "start it with" not in error


def test_commands_work_with_a_token(guarded, run, typed, admin, monkeypatch, tmp_path):
    status, read, _ = typed("token", "create", "--scope", "read", "--name", "ada", "--data", str(guarded.data))
    assert (status, read.startswith("gc_read_"), read.count("\n")) == (0, True, 1)
    monkeypatch.setenv("GRADCANARY_TOKEN", read.strip())
    status, said, _ = typed("incidents")
    assert (status, "collapse" in said) == (0, True)
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\n")
    status, said, _ = typed("test-rules", str(rules), "--run", run)
    assert (status, "2 of 12 parameters" in said) == (1, True), said
    status, _, error = typed("ack", "1", "--by", "ada")
    assert (status, "The token 'ada' has the scope read, and this takes admin." in error) == (2, True)
    assert typed("ack", "1", "--by", "ada", "--token", admin)[0] == 0
    monkeypatch.setenv("GRADCANARY_TOKEN", admin)
    status, said, _ = typed("silence", "1", "--for", "1h", "--by", "ada")
    assert status == 0
    assert typed("unsilence", said.split()[1])[0] == 0


def test_a_token_is_revoked_while_the_collector_runs(guarded, typed):
    where = ("--data", str(guarded.data))
    secret = typed("token", "create", "--scope", "read", "--name", "lost", "--days", "2", *where)[1].strip()
    with guarded.client(secret) as client:
        assert client.get("/api/v1/runs").status_code == 200
        [row] = [line for line in typed("token", "list", *where)[1].splitlines() if "  lost  " in line]
        assert typed("token", "revoke", row.split()[0], *where)[0] == 0
        until = time.monotonic() + 60
        while client.get("/api/v1/runs").status_code == 200:
            assert time.monotonic() < until
            time.sleep(0.2)
        assert client.get("/api/v1/runs").status_code == 401
    assert typed("token", "list", *where)[1].splitlines()[int(row.split()[0])].endswith("revoked")
    status, _, error = typed("token", "revoke", "99", *where)
    assert (status, "no token 99" in error) == (2, True)


def test_a_token_that_no_collector_would_know_is_not_made(typed, tmp_path, monkeypatch):
    """As on another machine, or as another user: a store of one's own is not the collector's."""
    folder = tmp_path / "mine"
    monkeypatch.setattr("platformdirs.user_data_path", lambda _name: folder)
    words = ("token", "create", "--scope", "read", "--name")
    status, said, error = typed(*words, "ada")
    assert (status, said, error.count("\n"), folder.exists()) == (1, "", 1, False)
    assert f"No collector has used a store at {folder / 'gradcanary.db'}" in error
    assert "--data DIR, or its database with --db URL" in error
    assert typed(*words, "ada", "--data", folder)[0] == 0, "there it is wanted"
    assert typed(*words, "bob")[:2] == (1, "")
    collector = Collector(folder)
    collector.start()
    try:
        assert typed(*words, "bob")[0] == 0
        collector.stop()
        status, said, error = typed(*words, "bob")
        assert (status, said) == (2, "")
        assert "Token 2 has the name 'bob'" in error
        status, secret, _ = typed(*words, "eve")
        assert (status, secret.startswith("gc_read_")) == (0, True), "of a collector that is stopped"
    finally:
        collector.kill()


def shown_of(client):
    """Return what a run's page is filled with now, as it says it itself: with that there is no news."""
    version = hashlib.sha256(client.get("/api/v1/runs/sdxl").content).hexdigest()
    held = {"version": version, "chosen": "", "slots": {"vs-runs": ""}}
    return {"path": "/runs/sdxl", "search": "", "shown": json.dumps(held)}


def test_pages_ask_the_collector_over_tls(guarded, run, admin):
    with guarded.client(admin) as client:
        news = shown_of(client)
        assert client.post("/_refresh", json=news).status_code == 204
        news["shown"] = json.dumps({"version": "old"})
        assert client.post("/_refresh", json=news).status_code == 200


def test_the_images_own_check_finds_it_behind_tls(guarded):
    check = [sys.executable, "-m", "gradcanary_server.ops.healthcheck", str(guarded.port)]
    assert subprocess.run(check, capture_output=True).returncode == 0
    with guarded.stopped():
        said = subprocess.run(check, capture_output=True, text=True)
    assert said.returncode == 1
    assert said.stderr.startswith("timed out; over TLS: ")


def test_pages_of_their_own_ask_it_with_their_token(guarded, run, admin):
    with guarded.client(admin) as client:
        news = shown_of(client)
    for token, status in ((admin, 204), (None, 200)):  # whoever is not let in has no idea of what is new
        with TestClient(create_app(guarded.url, token=token, trusted=guarded.context)) as pages:
            assert pages.post("/_refresh", json=news).status_code == status


def test_forwarded_address_of_a_proxy_is_used(guarded, admin):
    with guarded.client() as client:
        through = {"x-forwarded-for": "6.6.6.6, 203.0.113.9, 10.1.2.3", "origin": guarded.url}
        answer = client.post("/sign-in", data={"token": admin}, headers=through)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert "; Secure" in answer.headers["set-cookie"]
        told = client.get("/api/v1/audit").json()["audit"]
    assert (told[0]["action"], told[0]["address"]) == ("signed in", "203.0.113.9")


def test_no_secret_is_ever_said_again(guarded, admin, ingest, run):
    """The last one: it ends the collector."""
    wrong = "gc_read_" + "w" * 43
    with guarded.client() as client:
        signed_in = client.post("/sign-in", data={"token": admin}, headers={"origin": guarded.url})
        cookie = signed_in.cookies["__Host-gradcanary"]
        queries = (f"/api/v1/runs?token={admin}", f"/runs/x?token={wrong}")
        for path in (*queries, f"/api/v1/runs/{wrong}/layers", f"/{admin}"):
            client.get(path, headers={"authorization": f"Bearer {ingest}"})
            client.get(path)
        client.post("/_dash-update-component", content=admin, headers={"origin": guarded.url})
        client.put(f"/api/v1/runs/{wrong}/sessions/x", content=b"{", headers={"authorization": f"Bearer {ingest}"})
    with socket.create_connection(("127.0.0.1", guarded.port)) as plain:
        plain.sendall(f"GET /?token={admin} HTTP/1.1\r\nauthorization: Bearer {ingest}\r\n\r\n".encode())
        plain.recv(100)
    guarded.stop()
    said = "".join(guarded.output)
    assert (said.count(admin), said.count(ingest)) == (1, 1)
    for secret in (wrong, cookie, WEBHOOK_SECRET, WEBHOOK_SECRET.removeprefix("whsec_")):
        assert secret not in said
    kept = b"".join(path.read_bytes() for path in guarded.data.iterdir())
    assert b"first administrator" in kept
    for secret in (admin.removeprefix("gc_admin_"), ingest.removeprefix("gc_ingest_"), cookie):
        assert secret.encode() not in kept
    guarded.start()
    said = "".join(guarded.output).removeprefix(said)
    assert "token create --scope read" in said
    assert "gc_" not in said
