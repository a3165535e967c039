"""Who may do what, and which requests are those of a page of a stranger: the answer is no unless it is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server import rights
from gradcanary_server.rights import Asker

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW")
SESSION = "/api/v1/runs/r/sessions/s"


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("PUT", SESSION, "ingest"),
        ("POST", f"{SESSION}/batches/0", "ingest"),
        ("POST", f"{SESSION}/heartbeat", "ingest"),
        ("POST", f"{SESSION}/end", "ingest"),
        ("DELETE", SESSION, "admin"),
        ("GET", SESSION, "read"),
        ("GET", "/api/v1/runs/r", "read"),
        ("GET", "/api/v1/runs/r/recording", "read"),
        ("GET", "/runs/r", "read"),
        ("GET", "/assets/gradcanary.js", "read"),
        ("GET", "/_news", "read"),
        ("POST", "/_dash-update-component", "read"),
        ("DELETE", "/api/v1/runs/r", "admin"),
        ("POST", "/api/v1/incidents/1/ack", "admin"),
        ("POST", "/api/v1/silences", "admin"),
        ("DELETE", "/api/v1/silences/1", "admin"),
        ("PATCH", "/api/v1/silences/1", "admin"),
        ("GET", "/api/v1/silences/preview", "read"),
        ("GET", "/api/v1/tokens", "admin"),
        ("GET", "/api/v1/audit", "admin"),
        ("GET", "/api/v1/audit/more", "admin"),
        ("POST", "/api/v1/endpoints", "admin"),
        ("GET", "/api/v1/demo", "read"),
        ("POST", "/api/v1/demo", "admin"),
        ("GET", "/healthz", None),
        ("GET", "/sign-in", None),
        ("POST", "/sign-in", None),
        ("POST", "/sign-out", None),
    ],
)
def test_what_a_request_takes(method, path, scope):
    assert rights.needed(method, path) == scope


@given(st.sampled_from(METHODS), st.text(max_size=40).map("/".__add__))
def test_a_token_to_look_changes_nothing_and_one_to_send_does_nothing_else(method, path):
    needed = rights.needed(method, path)
    if path in rights.PUBLIC:
        return
    assert Asker("a", "admin").may(needed)
    if Asker("r", "read").may(needed):
        assert method in rights.SAFE or path == "/_dash-update-component"
    if Asker("i", "ingest").may(needed):
        assert path.startswith("/api/v1/runs/")
        assert "/sessions/" in path


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({}, True),  # an agent, a script
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://here:1"}, False),
        ({"sec-fetch-site": "nonsense"}, False),
        ({"origin": "http://here:1"}, True),
        ({"origin": "https://public.example"}, True),
        ({"origin": "https://public.example:443"}, True),
        ({"origin": "http://here:2"}, False),
        ({"origin": "http://here"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://here.evil.example:1"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://["}, False),
        ({"origin": "http://here:x"}, False),
    ],
)
def test_whose_page_sent_it(headers, is_own):
    assert rights.is_own({"host": "here:1", **headers}, "https://public.example") == is_own


@given(st.text(max_size=12).flatmap(lambda text: st.sampled_from([text, f"/{text}", f"//{text}", f"/\\{text}"])))
def test_after_signing_in_one_stays_here(wanted):
    found = rights.local_path(wanted)
    assert found[0] == "/"
    assert found[1:2] not in ("/", "\\")
    assert "\n" not in found
    assert "\r" not in found


@pytest.mark.parametrize(
    "wanted", ["https://evil.example", "//evil.example", "/\\evil.example", "", "/\r\nx: y", "/\t/x"]
)
def test_and_goes_nowhere_else(wanted):
    assert rights.local_path(wanted) == "/"


def test_where_one_wanted_to_go_is_kept():
    assert rights.local_path("/runs/a?layer=3&from=2") == "/runs/a?layer=3&from=2"
