"""Who may do what, and which requests are those of a page of a stranger: the answer is no unless it is named."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.app import mount
from gradcanary_dashboard.pages import registry
from gradcanary_server.app import create_app
from gradcanary_server.auth import policy
from gradcanary_server.auth.policy import Principal
from gradcanary_server.settings import Settings

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
        ("GET", SESSION, "admin"),  # there is no such route
        ("GET", "/api/v1/runs/r", "read"),
        ("GET", "/api/v1/runs/r/recording", "read"),
        ("GET", "/runs/r", "read"),
        ("GET", "/assets/js/gradcanary.js", "read"),
        ("POST", "/_refresh", "read"),
        ("DELETE", "/_refresh", "admin"),
        ("POST", "/_dash-update-component", "read"),
        ("POST", "/mcp", "read"),
        ("DELETE", "/mcp", "admin"),
        ("DELETE", "/api/v1/runs/r", "admin"),
        ("POST", "/api/v1/incidents/1/ack", "admin"),
        ("POST", "/api/v1/silences", "admin"),
        ("DELETE", "/api/v1/silences/1", "admin"),
        ("PATCH", "/api/v1/silences/1", "admin"),
        ("GET", "/api/v1/silences/preview", "read"),
        ("GET", "/api/v1/tokens", "admin"),
        ("GET", "/api/v1/audit", "admin"),
        ("GET", "/api/v1/audit/more", "admin"),
        ("GET", "/api/v1/secrets", "admin"),
        ("GET", "/api/v1/runs/r/secrets", "admin"),
        ("GET", "/api/v1/endpoints/1/secret", "admin"),
        ("GET", "/api/v2/runs", "admin"),
        ("GET", "/api", "admin"),
        ("GET", "/api/", "admin"),
        ("GET", "/_secrets", "admin"),
        ("GET", "/settings/nothing", "read"),  # there is no such page, and that takes no more than a page does
        ("GET", "/rnus/r", "read"),
        ("POST", "/rnus/r", "admin"),
        ("HEAD", "/api/v1/runs", "read"),
        ("HEAD", "/api/v1/secrets", "admin"),
        ("OPTIONS", "/_secrets", "admin"),
        ("POST", "/api/v1/endpoints", "admin"),
        ("GET", "/healthz", None),
        ("GET", "/sign-in", None),
        ("POST", "/sign-in", None),
        ("POST", "/sign-out", None),
    ],
)
def test_required_scope_of_a_request(method, path, scope):
    assert policy.required_scope(method, path) == scope


API = {
    "read": """
        GET /runs, GET /runs/{run}, GET /runs/{run}/layers, GET /runs/{run}/layers/{layer:path},
        GET /runs/{run}/series, GET /runs/{run}/heatmap,
        GET /runs/{run}/metrics, GET /runs/{run}/export.csv, GET /runs/{run}/metrics.csv, GET /runs/{run}/recording,
        GET /runs/{run}/samples, GET /runs/{run}/points,
        GET /rules, GET /incidents, GET /incidents/{number}, GET /incidents/{number}/picture.png,
        GET /silences, GET /silences/preview, GET /endpoints, GET /endpoints/{number},
        GET /endpoints/{number}/deliveries, GET /storage, GET /openapi.json""",
    "ingest": """
        PUT /runs/{run}/sessions/{session}, POST /runs/{run}/sessions/{session}/batches/{seq},
        POST /runs/{run}/sessions/{session}/heartbeat, POST /runs/{run}/sessions/{session}/end""",
    "admin": """
        PATCH /runs/{run}, DELETE /runs/{run}, POST /incidents/{number}/ack, POST /silences, PATCH /silences/{number},
        DELETE /silences/{number}, POST /endpoints, PATCH /endpoints/{number}, DELETE /endpoints/{number},
        POST /endpoints/{number}/rotate, POST /endpoints/{number}/test, POST /deliveries/{name}/redeliver,
        GET /tokens, POST /tokens, DELETE /tokens/{number}, GET /audit, POST /rules/trials""",
}
OTHERS = {
    "read": """
        GET /, GET /metrics, POST /_refresh, GET /_metrics, GET /_cell, GET /_download, GET /_download/metrics,
        GET /_download/layer, GET /_download/layers, GET /_download/compare, GET /_download/differences,
        GET /_download/runs, GET /_download/incident, GET /_download/incidents, GET /assets/pages-{hash}.js,
        GET /assets/pages-{hash}.css, GET /assets/{path:path},
        GET /_dash-component-suites/{package_name}/{fingerprinted_path:path}, GET /_dash-layout,
        GET /_dash-dependencies, POST /_dash-update-component, GET /_reload-hash, GET /_favicon.ico,
        POST /mcp, GET /mcp""",
    "nothing": "GET /healthz, GET /readyz, GET /sign-in, POST /sign-in, POST /sign-out",
    "admin": """
        GET /api/{rest:path}, POST /api/{rest:path}, PUT /api/{rest:path}, PATCH /api/{rest:path},
        DELETE /api/{rest:path}, POST /_trial, PUT /mcp, PATCH /mcp, DELETE /mcp""",
}
EXPECTED = {
    f"{method} {prefix}{path}": None if scope == "nothing" else scope
    for prefix, named in (("/api/v1", API), ("", OTHERS))
    for scope, routes in named.items()
    for method, path in (route.split() for route in routes.split(","))
}


def routes_of(routes):
    """Yield method and path of each HTTP route, those of included routers and of mounted apps among them."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from routes_of(included.routes)
        elif not hasattr(route, "methods"):
            if "Mount" in type(route).__name__:
                yield "GET", f"{route.path}/{{path:path}}"
        else:
            path = re.sub(r"pages-[0-9a-f]+", "pages-{hash}", route.path)
            yield from ((method, path) for method in route.methods - {"HEAD"})


def test_each_route_takes_the_scope_that_is_stated_here(tmp_path):
    """A route that is missing in the table above needs a line there: who may use it is decided, and not left over."""
    app = create_app(Settings(tmp_path, f"sqlite:///{tmp_path / 'rights.db'}", auth=True))
    mount(app, "http://127.0.0.1:8787", signs_in=True)
    found = {}
    for method, path in routes_of(app.routes):
        asked = re.sub(r"{\w+}", "1", re.sub(r"{\w+:path}", "a/b.js", path))
        found[f"{method} {path}"] = policy.required_scope(method, asked)
        if method == "GET":
            assert (
                policy.required_scope("HEAD", asked)
                == policy.required_scope("OPTIONS", asked)
                == policy.required_scope("GET", asked)
            )
    app.state.services.database.close()
    assert found == EXPECTED


def test_each_page_is_readable():
    addresses = (
        "/", "/runs/r", "/runs/r/", "/runs/team/r", "/runs/r/settings", "/runs/r/layers/w.x", "/compare", "/incidents",
        "/incidents/31", "/settings", "/settings/endpoints", "/settings/endpoints/1", "/settings/rules",
        "/settings/silences", "/settings/retention", "/settings/tokens", "/runbooks/collapse",
    )  # fmt: skip
    assert {registry.find(each)[0].name for each in addresses} == {page.name for page in registry.PAGES}
    assert {policy.required_scope("GET", each) for each in addresses} == {"read"}


@given(st.sampled_from(METHODS), st.text(max_size=40).map("/".__add__))
def test_a_token_to_look_changes_nothing_and_one_to_send_does_nothing_else(method, path):
    needed = policy.required_scope(method, path)
    if path in policy.PUBLIC:
        return
    assert Principal("a", "admin").may(needed)
    if Principal("r", "read").may(needed):
        assert method in policy.SAFE or path == "/_dash-update-component"
    if Principal("i", "ingest").may(needed):
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
def test_request_of_the_same_site(headers, is_own):
    assert policy.is_same_site({"host": "here:1", **headers}, "https://public.example") == is_own


@given(st.text(max_size=12).flatmap(lambda text: st.sampled_from([text, f"/{text}", f"//{text}", f"/\\{text}"])))
def test_after_signing_in_one_stays_here(wanted):
    found = policy.local_path(wanted)
    assert found[0] == "/"
    assert found[1:2] not in ("/", "\\")
    assert "\n" not in found
    assert "\r" not in found


@pytest.mark.parametrize(
    "wanted", ["https://evil.example", "//evil.example", "/\\evil.example", "", "/\r\nx: y", "/\t/x"]
)
def test_redirect_after_sign_in_stays_on_this_collector(wanted):
    assert policy.local_path(wanted) == "/"


def test_wanted_page_is_kept_over_sign_in():
    assert policy.local_path("/runs/a?layer=3&from=2") == "/runs/a?layer=3&from=2"
