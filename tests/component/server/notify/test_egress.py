"""What may be sent where: the guard on real sockets, and receivers that want to be waited for."""

import asyncio
import ipaddress
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
import trustme

from gradcanary_server.errors import SettingsError
from gradcanary_server.notify import webhook
from gradcanary_server.notify.egress import AddressError, EgressPolicy
from gradcanary_server.notify.sender import Sender
from gradcanary_server.notify.webhook import OutgoingMessage
from gradcanary_server.settings import Settings
from support.receivers import Receiver, babble, close_mid_answer, flood, hang, status, stutter, trickle

SECRET = "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
NAME = "hook.example"
OPEN = EgressPolicy((ipaddress.ip_network("127.0.0.1/32"),))
"""As if 127.0.0.1 were a public address, and 127.0.0.2 none."""


def attempt(url, guard=OPEN, *, is_guarded=True):
    async def carry():
        async with webhook.open_client() as client:
            message = OutgoingMessage("msg_1_1", url, (SECRET,), b'{"type":"x"}', is_guarded)
            return await Sender(guard=guard).send(client, message)

    # In a thread of its own: the browser tests leave an event loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, carry()).result()


@pytest.fixture
def named(monkeypatch):
    """Let a name mean what a test says, another thing at each look-up; return the look-ups."""
    asked, looked_up = [], socket.getaddrinfo

    def means(*answers):
        def look_up(host, port, *rest, **more):
            if host != NAME:
                return looked_up(host, port, *rest, **more)
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in answers[len(asked) - 1]]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        return asked

    return means


@pytest.fixture
def pair(receiver_factory):
    """Return a receiver that may be sent to, and one of the same port on an address that may not."""
    outside = receiver_factory()
    inside = Receiver(host="127.0.0.2", port=outside.port)
    yield outside, inside
    inside.close()


def test_a_name_is_looked_up_once_per_attempt_and_judged_each_time(named, pair):
    outside, inside = pair
    asked = named(["127.0.0.1"], ["127.0.0.2"])
    url = f"http://{NAME}:{outside.port}/hook"
    assert attempt(url).status == 200
    assert asked == [NAME], "what was judged is what is connected to"
    assert outside.got[0].headers["host"] == f"{NAME}:{outside.port}"
    rebound = attempt(url)
    assert "127.0.0.2 is not a public address" in str(rebound.error)
    assert (len(outside.got), inside.got) == (1, [])


def test_a_host_that_nobody_knows_is_named_with_what_to_do(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = str(attempt(f"https://{NAME}/hook").error)
    assert said.startswith(f"no address is known for the host {NAME} (Name or service not known): check its spelling")


def test_egress_refuses_mixed_dns_answers(named, pair):
    outside, inside = pair
    named(["127.0.0.1", "127.0.0.2"])
    assert "refused" in str(attempt(f"http://{NAME}:{outside.port}/hook").error)
    assert outside.got == inside.got == []


def test_an_address_that_nobody_answers_at_is_passed_over(named, receiver_factory):
    receiver = receiver_factory()
    named(["127.0.0.3", "127.0.0.1"], ["127.0.0.3"])
    guard = EgressPolicy((ipaddress.ip_network("127.0.0.0/30"),))
    url = f"http://{NAME}:{receiver.port}/hook"
    assert attempt(url, guard).status == 200
    assert "ConnectError" in str(attempt(url, guard).error)
    assert len(receiver.got) == 1


def test_a_certificate_is_held_against_the_name_that_was_looked_up(named, receiver_factory, monkeypatch):
    authority, receiver = trustme.CA(), receiver_factory()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trusting = ssl.create_default_context()
    authority.issue_cert(NAME).configure_cert(server)
    authority.configure_trust(trusting)
    receiver.server.socket = server.wrap_socket(receiver.server.socket, server_side=True)
    monkeypatch.setattr(webhook, "_authorities", lambda: trusting)
    named(["127.0.0.1"])
    assert attempt(f"https://{NAME}:{receiver.port}/hook").status == 200
    assert "CERTIFICATE_VERIFY_FAILED" in str(attempt(f"https://127.0.0.1:{receiver.port}/hook").error)


def test_egress_reports_unknown_and_invalid_names(named):
    assert "no name of a host" in str(attempt(f"http://{'a' * 64}.example/").error)
    named([])
    assert "no address" in str(attempt(f"http://{NAME}/").error)


def test_redirects_lead_nowhere(receiver_factory, pair):
    _, inside = pair
    moved = receiver_factory(status(307, Location=inside.url), status(301, Location="http://169.254.169.254/"))
    for _ in range(2):
        assert "redirects are not followed" in str(attempt(moved.url).error)
    assert inside.got == []


@pytest.mark.parametrize(
    "host",
    ["localhost", "2130706433", "0177.0.0.1", "0x7f.1", "127.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[::]"],
)
def test_odd_ways_to_write_this_machine(receiver_factory, host):
    receiver = receiver_factory()
    outcome = attempt(f"http://{host}:{receiver.port}/hook", EgressPolicy())
    assert str(outcome.error).startswith("refused"), outcome
    assert receiver.got == []
    assert attempt(receiver.url, EgressPolicy(), is_guarded=False).status == 200, "the operator may"


NOT_PUBLIC = """
    10.1.2.3 172.16.0.1 192.168.1.1 127.0.0.1 169.254.169.254 100.64.0.1 100.100.100.200 0.0.0.0 224.0.0.1 240.0.0.1
    255.255.255.255 198.18.0.1 192.0.2.1 ::1 :: ::ffff:10.0.0.1 ::10.0.0.1 64:ff9b::a00:1 2002:a00:1:: fe80::1
    fe80::1%eth0 fc00::1 fd00:ec2::254 fec0::1 ff02::1 2001:db8::1
    168.63.129.16 ::ffff:168.63.129.16 64:ff9b::a83f:8110 192.0.0.8 192.0.0.192 192.88.99.1 3fff::1
"""


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_egress_refuses_addresses_that_are_not_public(address):
    with pytest.raises(AddressError, match="GRADCANARY_WEBHOOK_NETWORKS"):
        EgressPolicy().check(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "168.63.129.17", "::ffff:8.8.8.8", "64:ff9b::808:808", "2606::1"])
def test_egress_allows_public_addresses(address):
    EgressPolicy().check(ipaddress.ip_address(address))


def test_the_operator_allows_networks(tmp_path):
    guard = EgressPolicy(
        Settings.from_env({"GRADCANARY_WEBHOOK_NETWORKS": "10.0.0.0/8, fd00::/8"}, data=tmp_path).webhook_networks
    )
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::7"):
        guard.check(ipaddress.ip_address(address))
    with pytest.raises(AddressError):
        guard.check(ipaddress.ip_address("192.168.1.1"))
    with pytest.raises(SettingsError, match="host bits"):
        Settings.from_env({"GRADCANARY_WEBHOOK_NETWORKS": "10.0.0.1/8"}, data=tmp_path)


@pytest.mark.parametrize("answer", [hang, stutter], ids=["nothing", "headers without end"])
def test_a_slow_receiver_has_a_deadline(receiver_factory, monkeypatch, answer):
    monkeypatch.setattr(webhook, "TIMEOUT_S", 1.0)
    outcome = attempt(receiver_factory(answer).url)
    assert str(outcome.error) == "no answer within 1 s"
    assert outcome.ms >= 990


@pytest.mark.parametrize(("answer", "drain_s"), [(trickle, 0.2), (flood, 1000.0)], ids=["slow", "fast"])
def test_endless_answer_is_read_up_to_a_limit(receiver_factory, monkeypatch, answer, drain_s):
    monkeypatch.setattr(webhook, "DRAIN_S", drain_s)
    assert attempt(receiver_factory(answer).url).status == 200


def test_headers_without_end_are_an_error(receiver_factory):
    assert "RemoteProtocolError" in str(attempt(receiver_factory(babble).url).error)


@pytest.mark.parametrize("answer", [hang, babble, close_mid_answer, status(502), status(504)])
def test_attempts_that_may_have_arrived(receiver_factory, monkeypatch, answer):
    monkeypatch.setattr(webhook, "TIMEOUT_S", 1.0)
    assert attempt(receiver_factory(answer).url).error.maybe_delivered


def test_attempts_that_did_not_arrive(receiver_factory):
    refused = [receiver_factory(status(code)).url for code in (302, 400, 410, 429, 500, 503)]
    away = receiver_factory()
    away.close()
    ends = [attempt(url).error for url in (*refused, away.url, "http://nobody.invalid/", "http://169.254.169.254/")]
    assert [end.maybe_delivered for end in ends] == [False] * len(ends), ends


@pytest.mark.parametrize("code", [429, 503])
def test_a_receiver_may_ask_for_time_in_two_ways(receiver_factory, code):
    later = datetime.now(timezone.utc) + timedelta(seconds=100)
    for said, low, high in (
        ("7", 7, 7),
        (format_datetime(later, usegmt=True), 60, 100),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0),
        ("9" * 400, 10**8, 10**9),
    ):
        error = attempt(receiver_factory(status(code, Retry_After=said)).url).error
        assert low <= error.retry_after_s <= high, said
        assert (error.status, error.permanent) == (code, False)
    for nonsense in ("soon", "-5", "1e9", "Thu, 99 Jan 2030"):
        assert attempt(receiver_factory(status(code, Retry_After=nonsense)).url).error.retry_after_s is None


def test_gone_is_for_ever(receiver_factory):
    assert attempt(receiver_factory(status(410)).url).error.permanent
