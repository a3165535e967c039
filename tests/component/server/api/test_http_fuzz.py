"""Whatever is asked, and however: an answer that the collector promises, never a failure of its own."""

import base64
import json
import re
import socket
import threading
import time
import typing
from datetime import datetime

import httpx
import numpy as np
import pytest
import schemathesis
from fastapi import Response
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, engine
from schemathesis.core.parameters import ParameterLocation
from schemathesis.engine import events
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.api import incidents, measurements, runs
from gradcanary_server.app import create_app
from gradcanary_server.ops import process
from gradcanary_server.ops.process import Server
from gradcanary_server.settings import Settings
from gradcanary_server.storage.schema import run
from support import schemas, streams
from support.collectors import Collector
from support.effort import EFFORT

STREAM = streams.Stream(streams.healthy(50, 3), streams.falling_loss(50))
ILL = streams.Stream(streams.collapsed(400, 6, (1, 4), 200), streams.falling_loss(400))
SESSION = "/api/v1/runs/run/sessions/s"
OTHER = "/api/v1/runs/other/sessions/s"
ILLNESS = "/api/v1/runs/ill/sessions/s"
ANYTHING = [HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]
"""What these tests do not mind."""


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    app = create_app(Settings.from_env({}, data=tmp_path_factory.mktemp("data")))
    headers = {"Content-Type": "application/json"}
    with TestClient(
        app, base_url="http://localhost", headers=headers, raise_server_exceptions=False, follow_redirects=False
    ) as client:
        for session in (SESSION, OTHER):
            client.put(session, content=wire.dump(STREAM.hello())).raise_for_status()
        client.post(f"{SESSION}/batches/0", content=wire.dump(STREAM.batch(0, 50))).raise_for_status()
        for path, message in filling():
            asked = client.put if path == ILLNESS else client.post
            asked(path, content=message if isinstance(message, bytes) else json.dumps(message)).raise_for_status()
        yield client


def filling():
    """Yield what fills every kind of answer: a run with gaps and an incident, somebody who is told, and the rest."""
    yield ILLNESS, wire.dump(ILL.hello(facts=(wire.Fact("x", "A finding.", ("a",)),)))
    yield f"{ILLNESS}/batches/0", wire.dump(ILL.batch(0, 100, change_records=True))
    yield f"{ILLNESS}/batches/1", wire.dump(ILL.batch(150, 400))
    yield "/api/v1/endpoints", {"url": "https://nobody.invalid/hook", "name": "told"}
    yield "/api/v1/silences", {"run": "ill", "until": f"{datetime.now().year + 1}-01-01T00:00:00Z", "by": "me"}  # noqa: DTZ005 -- a year
    yield "/api/v1/incidents/1/ack", {"by": "me", "note": "seen"}
    yield "/api/v1/tokens", {"name": "wall", "scope": "read"}


def operations(client):
    """Return what the app says that it serves; what takes names away comes last, and deletes thereafter."""
    found = [each.ok() for each in schemathesis.openapi.from_dict(schemas.strict()).get_all_operations()]
    return sorted(
        found,
        key=lambda operation: (
            ("patch", "delete").index(operation.method) if operation.method in ("patch", "delete") else -1
        ),
    )


def test_every_answer_in_json_has_a_shape(client):
    said = schemas.strict()
    found = {
        (path, method, status): content["application/json"]["schema"]
        for path, methods in said["paths"].items()
        if not path.startswith("/sign-")  # those are pages
        for method, operation in methods.items()
        for status, answer in operation["responses"].items()
        if "application/json" in (content := answer.get("content", {}))
    }
    assert [key for key, shape in found.items() if not shape] == []
    named = {shape["$ref"].rpartition("/")[2] for shape in found.values() if "$ref" in shape}
    assert named <= said["components"]["schemas"].keys()


FILLED = (
    "/api/v1/runs",
    "/api/v1/runs/ill",
    "/api/v1/runs/ill/layers",
    "/api/v1/runs/ill/layers/1",
    "/api/v1/runs/ill/series?layer=1&layer=2",
    "/api/v1/runs/ill/heatmap",
    "/api/v1/runs/ill/metrics",
    "/api/v1/rules",
    "/api/v1/incidents",
    "/api/v1/incidents?detailed=100",
    "/api/v1/incidents/1",
    "/api/v1/silences",
    "/api/v1/silences/preview?run=ill",
    "/api/v1/endpoints",
    "/api/v1/endpoints/1",
    "/api/v1/tokens",
    "/api/v1/audit",
    "/readyz",
)
"""Answers that have something in each of their lists; the tests of deliveries have those about messages."""


@pytest.mark.parametrize("path", FILLED)
def test_an_answer_has_the_shape_that_is_published(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    body = schemas.hold(answer)
    if path == "/api/v1/runs/ill":
        body.pop("aliases")
        assert [key for key, value in body.items() if value == []] == ["unacked", "tags"]
    if path == "/api/v1/incidents/1":
        assert (len(body["layers"]), body["deliveries"]) == (2, [])


STEPS = {"from": (0, 2**31 - 1), "to": (0, 2**31 - 1)}
BOUNDS = {
    "/api/v1/runs/ill/layers/0?": {**STEPS, "points": (1, 5_000)},
    "/api/v1/runs/ill/series?layer=0": {**STEPS, "points": (1, 5_000)},
    "/api/v1/runs/ill/heatmap?rows=1": {**STEPS, "columns": (1, 5_000)},
    "/api/v1/runs/ill/heatmap?columns=1": {"rows": (1, 20_000)},
    "/api/v1/runs/ill/metrics?": {**STEPS, "points": (1, 5_000)},
    "/api/v1/runs/ill/export.csv?": STEPS,
    "/api/v1/runs/ill/metrics.csv?": STEPS,
    "/api/v1/runs/ill/samples?": STEPS,
    "/api/v1/runs/ill/points?": STEPS,
    "/api/v1/runs?": {"limit": (1, 1_000)},
    "/api/v1/incidents?": {"limit": (1, 100), "detailed": (0, 100)},
    "/api/v1/storage?": {"limit": (1, 1_000)},
}
"""What numbers of questions may be. The document is made of what checks them: where that is wrong it says the same."""


@pytest.mark.parametrize("question", BOUNDS)
def test_numbers_of_questions_have_their_bounds(client, question):
    for name, (low, high) in BOUNDS[question].items():
        for value in (low, high):
            assert client.get(f"{question}&{name}={value}").status_code == 200, (name, value)
        for value in (low - 1, high + 1, 10**30, "", "x", "1.5", "NaN", "%00"):
            answer = client.get(f"{question}&{name}={value}")
            assert (answer.status_code, answer.json()["error"]["field"]) == (422, name), value


def test_all_numbers_of_questions_are_among_them(client):
    asked = {
        (path.replace("{run}", "ill").replace("{layer}", "0"), parameter["name"])
        for path, methods in schemas.document()["paths"].items()
        for operation in methods.values()
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "query" and "integer" in json.dumps(parameter["schema"])
    }
    assert asked == {(question.partition("?")[0], name) for question, named in BOUNDS.items() for name in named}


@pytest.mark.parametrize(
    "path",
    ["series?layer=0&points=5000", "layers/0?points=5000", "heatmap?columns=5000", "metrics?points=5000"],
)
def test_a_question_about_some_steps_is_answered_with_these(client, path):
    def steps(more):
        found = client.get(f"/api/v1/runs/ill/{path}{more}").json()["steps"]
        return np.frombuffer(base64.b64decode(found["data"]), found["dtype"]).tolist()

    whole = steps("")
    assert (whole[0], whole[-1]) == (0, 399)
    assert steps("&from=200&to=300") == [step for step in whole if 200 <= step <= 300]
    assert steps("&from=200") == [step for step in whole if step >= 200]
    assert steps("&to=30") == [step for step in whole if step <= 30]
    assert steps("&from=300&to=200") == steps("&from=5000") == []


def test_batches_are_in_the_document_with_what_agents_are_told(client):
    said = schemas.document()
    batches = said["paths"]["/api/v1/runs/{run}/sessions/{session}/batches/{seq}"]["post"]
    [(media_type, body)] = batches["requestBody"]["content"].items()
    assert (media_type, body["schema"]) == ("application/json", {"$ref": "#/components/schemas/Batch"})
    assert {each["name"] for each in batches["parameters"]} == {"run", "session", "seq"}
    told = {"200", "4XX", "400", "401", "403", "404", "409", "410", "413", "415", "422", "429", "503"}
    assert batches["responses"].keys() == told
    assert {status for status in told if "headers" in batches["responses"][status]} == {"429", "503"}
    bodies = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for methods in said["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    }
    assert {"RunPatch", "TokenCreate", "SilenceCreate", "Hello", "End", "EmptyRequest"} <= bodies
    assert bodies <= said["components"]["schemas"].keys()


def test_the_document_is_served(client):
    assert client.get("/api/v1/openapi.json").json() == json.loads(json.dumps(schemas.document()))


NO_BODIES = {
    "a lone surrogate": (rb'{"note": "\ud800"}', 400, "invalid_json"),
    "no JSON": (b"{", 400, "invalid_json"),
    "a list": (b"[]", 422, "invalid"),
    "an unknown key": (b'{"more": 1}', 422, "invalid"),
    "a million objects": (b'{"tags":[' + b"{}," * 1_000_000 + b"{}]}", 422, "invalid"),
    "a million errors": (b'{"tags":[' + b"1," * 1_000_000 + b"1]}", 422, "invalid"),
    "too large": (b'{"note": "' + b"a" * 5 * 2**20 + b'"}', 413, "too_large"),
}


@pytest.mark.parametrize("case", NO_BODIES)
def test_a_body_of_a_person_is_bounded_and_strict(client, case):
    raw, status, code = NO_BODIES[case]
    answer = client.patch("/api/v1/runs/other", content=raw)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


LARGE = {
    *("/runs", "/runs/{run}", "/runs/{run}/layers", "/runs/{run}/layers/{layer:path}", "/runs/{run}/series"),
    *("/runs/{run}/heatmap", "/incidents"),
}
"""Answers of up to megabytes, which pages ask for each second."""


def test_large_answers_are_not_checked_again(client):
    """FastAPI validates what a route returns unless that is a response."""
    made = {
        route.path.removeprefix("/api/v1"): typing.get_type_hints(route.endpoint)["return"]
        for route in (*runs.router.routes, *measurements.router.routes, *incidents.router.routes)
        if "GET" in route.methods
    }
    assert {path for path in LARGE if made[path] is not Response} == set()


BEYOND_A_SCHEMA = {
    "PUT /api/v1/runs/{run}/sessions/{session}": "a layer set is named by the hash of its layers",
    "POST /api/v1/runs/{run}/sessions/{session}/batches/{seq}": "columns fit each other, and the layer set of a hello",
    "POST /api/v1/runs/{run}/sessions/{session}/heartbeat": "bounds of numbers: the wire is the agent's own",
    "POST /api/v1/runs/{run}/sessions/{session}/end": "the same",
    "PATCH /api/v1/runs/{run}": "aliases are names that the run had",
    "GET /api/v1/runs/{run}/heatmap": "rows x columns is bounded together; an expression has no look-around",
    "POST /api/v1/incidents/{number}/ack": "who acks says by whom where nobody signs in",
    "POST /api/v1/silences": "a silence ends in the future, within a year",
    "PATCH /api/v1/silences/{number}": "the same",
    "POST /api/v1/endpoints": "an address is one that may be sent to; a secret has so many bits",
    "PATCH /api/v1/endpoints/{number}": "the same",
    "POST /api/v1/rules/trials": "a text is a rules.yaml",
}
"""Requests that fit the document and may be refused all the same, with what of them no schema says."""

OF_A_FORM = {
    "GET /api/v1/runs": "after",
    "GET /api/v1/incidents": "before",
    "GET /api/v1/audit": "before",
    "GET /api/v1/endpoints/{number}/deliveries": "before",
    "GET /api/v1/runs/{run}/metrics": "tags",
    "GET /api/v1/runs/{run}/metrics.csv": "tags",
    "GET /api/v1/runs/{run}/export.csv": "match",
    "GET /api/v1/runs/{run}/points": "tags",
    "GET /api/v1/runs/{run}/samples": "match",
    "GET /api/v1/silences/preview": "match",
}
"""Left out of what fits: where the following page begins, as the collector said it, JSON in a text, expressions."""

KNOWN = {
    "path": {"run": "ill", "session": "s", "number": 1},
    "query": {"run": "ill", "layer": ["0"]},
    "body": {"protocol": wire.PROTOCOL},
}
"""What is there to be asked about."""


def test_every_route_answers_as_it_says_it_does(client):
    """The last one about that run, which it renames and deletes."""
    seen = {operation.label: drawn(client, operation) for operation in operations(client)}
    refusing = {label for label, statuses in seen.items() if not any(200 <= status < 400 for status in statuses)}
    assert refusing <= {
        *BEYOND_A_SCHEMA,
        "POST /api/v1/deliveries/{name}/redeliver",  # what was sent has names of its own, as have these:
        "DELETE /api/v1/tokens/{number}",  # which may have been drawn and gone, and a run may have another name by now:
        "DELETE /api/v1/runs/{run}",
    }
    assert BEYOND_A_SCHEMA.keys() | OF_A_FORM.keys() <= seen.keys()


def drawn(client, operation):
    """Ask a route for what fits it, of a run that is there, and for whatever may not; return the statuses."""
    statuses = set()
    fitting, other = (operation.as_strategy(generation_mode=mode) for mode in GenerationMode)
    drawing = {"phases": [Phase.generate], "suppress_health_check": ANYTHING}

    @settings(max_examples=4 * EFFORT, **drawing)
    @given(fitting)
    def ask_what_fits(case):
        statuses.add(ask(client, operation, known(case)))

    @settings(max_examples=4 * EFFORT, **drawing)
    @given(fitting | other, st.booleans())
    def ask_whatever(case, is_known):
        statuses.add(ask(client, operation, known(case) if is_known else case))

    ask_what_fits()
    ask_whatever()
    return statuses


def known(case):
    """Return the question about what is there; what is wrong in it stays."""
    for where, asked in (("path", case.path_parameters), ("query", case.query), ("body", case.body)):
        part = case.meta.components.get(ParameterLocation(where))
        if isinstance(asked, dict) and part is not None and part.mode.is_positive:
            asked |= {name: there for name, there in KNOWN[where].items() if name in asked}
    return case


def ask(client, operation, case):
    """Hold an answer against the document, and return its status."""
    if case.query and case.meta.generation.mode.is_positive:
        case.query.pop(OF_A_FORM.get(operation.label), None)
        if operation.label == "GET /api/v1/incidents" and "layer" in case.query:
            case.query.setdefault("run", KNOWN["query"]["run"])  # a layer is one of a run: no document says that
    asked = case.as_transport_kwargs(base_url="http://localhost")
    asked["content"] = asked.pop("data", None)
    asked = {name: value for name, value in asked.items() if value is not None and name != "cookies"}
    request = client.build_request(**asked)
    if "content-type" not in (name.lower() for name in asked.get("headers", ())):
        request.headers.pop("content-type", None)  # what the document does not name is not sent
    answer = client.send(request)
    answer.request.read()  # a form is sent as it is made
    excluded = [positive_data_acceptance] if operation.label in BEYOND_A_SCHEMA else []
    if answer.status_code == 426:
        excluded.append(negative_data_rejection)  # which has not heard of this way to refuse
    case.validate_response(answer, excluded_checks=excluded)
    return answer.status_code


def phases():
    """Return what a collector is asked: each example and each bound once, and so many that are drawn."""
    drawn = {"max-examples": 2 * EFFORT, "no-shrink": True, "database": "none"}
    return {
        "examples": {"enabled": True},
        "coverage": {"enabled": True},
        "fuzzing": {"enabled": True, "generation": drawn},
        "stateful": {"enabled": False},
    }


def known_of_operations():
    """Yield what no document says of some operations."""
    for label in BEYOND_A_SCHEMA.keys() | OF_A_FORM.keys():
        checks = {"positive_data_acceptance": {"enabled": False}}
        if label.startswith("PUT"):
            checks["negative_data_rejection"] = {"expected-statuses": ["4XX"]}  # 426 is a way to refuse, too
        if label.endswith("/silences/preview"):  # by PATCH and DELETE it is a silence, whose number is wrong
            checks |= {name: {"enabled": False} for name in ("unsupported_method", "allow_header_conformance")}
        yield {"include-name": label, "checks": checks}
    yield {"include-name": "DELETE /api/v1/tokens/{number}", "parameters": {"number": 99}}  # not the one that asks


def test_a_collector_with_tokens_answers_as_its_document_says(tmp_path, client):
    """A process as it is started, by every check of every phase, and with no header that the document does not name."""
    collector = Collector(tmp_path, ("--auth",)).start()
    [secret] = set(re.findall(r"\bgc_admin_\S+", "".join(collector.output)))
    asking = {
        "base-url": collector.url,
        "headers": {"Authorization": f"Bearer {secret}"},
        "cache": {"enabled": False},
        "phases": phases(),
        "operations": list(known_of_operations()),
    }
    asked = schemathesis.openapi.from_dict(schemas.strict(), config=schemathesis.Config.from_dict(asking))
    found = list(engine.from_schema(asked).execute())
    collector.kill()
    assert [each for each in found if isinstance(each, (events.NonFatalError, events.FatalError))] == []
    scenarios = [each.recorder for each in found if isinstance(each, events.ScenarioFinished)]
    checks = [(each.label, check) for each in scenarios for some in each.checks.values() for check in some]
    assert [(label, str(check.failure_info.failure)) for label, check in checks if check.failure_info] == []
    answers = [
        (each.label, interaction.response.status_code)
        for each in scenarios
        for interaction in each.interactions.values()
    ]
    assert len(answers) > 500
    let_in = {label for label, status in answers if status not in (401, 403)}
    assert {operation.label for operation in operations(client)} <= let_in


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.just("\0"),
    st.just([]),
)
anything = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner))


numbers = st.lists(st.sampled_from([0.0, 1.0, -1.0, 1e-30, 3e38, np.nan, np.inf, -np.inf]), max_size=16)
columns = st.one_of(
    st.builds(wire.column, st.sampled_from("fd"), numbers),
    st.builds(wire.column, st.just("B"), st.lists(st.integers(0, 9), max_size=16)),
)
words = st.sampled_from(["", "loss", "lr0", "a\nb", "bfloat16", *wire.STATS, *wire.PHASES])


def nearly(value):
    """Draw what has the type of a value in a batch, and may be wrong all the same."""
    if isinstance(value, list):
        turned = st.sampled_from([value[::-1], value + value[:1], value[1:], value * 2, []])
        return turned if value and isinstance(value[0], dict) else turned | st.lists(st.integers(-1, 60), max_size=6)
    if isinstance(value, str):
        return st.one_of(columns, columns, words, st.just(value[:-1]), st.just(value[4:]))
    return st.one_of(st.none(), st.integers(-2, 60), st.sampled_from([100, 2**31, 2**53, 2**63, 2**64]))


@st.composite
def bad_batches(draw):
    """A batch in which something was put in another place, or cut, or that is something else altogether."""
    made = json.loads(wire.dump(STREAM.batch(0, 5, change_records=True)))
    for _ in range(draw(st.integers(1, 3))):
        place = made
        while isinstance(place, dict | list) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            inner = place[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 3)) == 0:
                is_other = isinstance(inner, dict) or draw(st.integers(0, 5)) == 0
                place[key] = draw(anything if is_other else nearly(inner))
                break
            place = inner
    raw = json.dumps(made).encode()
    return raw if draw(st.integers(0, 9)) < 9 else raw[: draw(st.integers(0, len(raw)))] + draw(st.binary(max_size=5))


def check_good(batch, layers=3):
    """Hold a batch that was taken against what the wire promises of its columns."""
    steps, state = batch["steps"], base64.b64decode(batch["state"])
    assert steps == sorted(set(steps))
    assert all(0 <= step < 2**31 for step in steps)
    assert {len(batch[name]) for name in ("micro_steps", "skipped", "clipped")} == {len(steps)}
    assert len(state) == len(steps) * layers
    assert set(state) <= set(range(len(wire.STATES)))
    for block in batch["blocks"]:
        mine = range(layers) if block["layers"] is None else block["layers"]
        values = np.frombuffer(base64.b64decode(block["values"]), "<f4")
        assert set(block["steps"]) <= set(steps)
        assert set(mine) <= set(range(layers))
        assert len(values) == len(block["steps"]) * len(mine)
        assert not np.isinf(values).any()
    for metric in batch["metrics"]:
        assert len(base64.b64decode(metric["values"])) == 8 * len(metric["steps"])


LAUNCHES, LOOK = 40, 8
"""Of a run, which shows all of them; and how many batches are taken between two looks at what is shown."""


class Fresh:
    """A session that has sent nothing yet; every batch that is taken is the first one of another."""

    def __init__(self, client):
        self.client, self.database = client, client.app.state.services.database
        self.count, self.taken = 0, []
        self.begin()

    def begin(self):
        self.run = f"other{self.count // LAUNCHES}"
        self.path = f"/api/v1/runs/{self.run}/sessions/s{self.count}"
        hello = STREAM.hello(launch=f"l{self.count}")
        self.client.put(self.path, content=wire.dump(hello)).raise_for_status()
        self.count += 1

    def revision(self):
        with self.database.read() as connection:
            return connection.execute(select(run.c.revision).where(run.c.name == self.run)).scalar_one()

    def look(self):
        """See that every page can be made of what was taken."""
        for path in (
            *("", "/layers", "/layers/0", "/heatmap", "/metrics", "/series?layer=0", "/export.csv", "/metrics.csv"),
        ):
            assert self.client.get(f"/api/v1/runs/{self.run}{path}").status_code == 200, (path, self.taken)
        self.taken = []


@pytest.fixture
def fresh(client):
    made = Fresh(client)
    yield made
    made.look()


@settings(max_examples=150 * EFFORT, phases=[Phase.generate], suppress_health_check=ANYTHING, database=None)
@given(bad_batches())
def test_a_bad_batch_is_refused_and_changes_nothing(client, fresh, raw):
    before = fresh.revision()
    answer = client.post(f"{fresh.path}/batches/0", content=raw)
    assert answer.status_code in (200, 400, 409, 413, 422), (answer.text, raw)
    if answer.status_code != 200:  # some are good ones
        assert set(answer.json()["error"]) == {"code", "message", "field"}
        assert fresh.revision() == before
        return
    check_good(json.loads(raw))
    fresh.taken.append(raw)
    if fresh.count % LOOK == 0:
        fresh.look()
    fresh.begin()


@pytest.fixture
def address(tmp_path, monkeypatch):
    """A server in this process that waits for a request for half a second."""
    monkeypatch.setattr(process, "REQUEST_S", 0.5)
    app = create_app(Settings.from_env({}, data=tmp_path))
    server = Server(app, "http://here")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=server.run, args=([listener],))
        serving.start()
        yield listener.getsockname()
        server.should_exit = True
        serving.join()


@pytest.mark.parametrize(
    "begin",
    [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"PUT /x HTTP/1.1\r\nContent-Length: 9999\r\n\r\n"],
    ids=["nothing", "headers", "body"],
)
def test_a_request_that_does_not_come_to_its_end_is_hung_up_on(address, begin):
    with socket.create_connection(address, 60) as slow:
        slow.sendall(begin)
        slow.settimeout(0.05)
        end = time.monotonic() + 60
        while is_open(slow, b"x" if begin else b""):
            assert time.monotonic() < end, "it is waited for for ever"


def is_open(connection, byte):
    """Send a byte more; tell whether nobody has hung up."""
    try:
        connection.sendall(byte)
        return connection.recv(9999) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def test_requests_that_come_are_answered_on_one_connection(address, monkeypatch):
    """The deadline of each is over with it: none of them is left to hang up on the next one."""
    deadlines, wait = [], process.Connection._set_deadline
    monkeypatch.setattr(process, "REQUEST_S", 600.0)
    monkeypatch.setattr(process.Connection, "_set_deadline", lambda of: wait(of) or deadlines.append(of._deadline))
    with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=60) as client:
        for _ in range(4):
            assert client.get("/healthz").status_code == 200
            assert all(each.cancelled() for each in deadlines)
    assert len(deadlines) == 1 + 4, "one for the connection, and one for each request"
