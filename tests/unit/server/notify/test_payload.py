"""The bytes of a message: its shape, and its size for any names."""

import json
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary import remedies
from gradcanary_server.incidents import causes, text
from gradcanary_server.incidents.detail import CoveredIncident, IncidentDetail
from gradcanary_server.incidents.explanation import explain
from gradcanary_server.incidents.lifecycle import TransitionContext, apply_transitions
from gradcanary_server.notify import payload
from gradcanary_server.notify.planner import Kind
from gradcanary_server.rules.config import NAMES
from gradcanary_server.rules.types import LayerFacts
from support import schemas
from support.server.transitions import fired

URL = "http://127.0.0.1:8787"


def dossier(names, bad, framework="peft", run="sdxl"):
    [case] = apply_transitions(None, [fired(layer) for layer in bad], TransitionContext(1, len(names), 0.0), 0.0)
    layers = {number: LayerFacts(number, name, (8, 64), "float32", "Linear", 0) for number, name in enumerate(names)}
    cause = causes.likely_cause(causes.CauseContext(case.incident, case.members, layers))
    summary = text.sentence(case.incident, case.members, dict(enumerate(names)))
    fix = remedies.fix(cause.code, framework)
    parts = explain(summary, case.incident, cause, fix)
    headline = text.headline(case.incident, case.members)
    about = replace(case.incident, id=31)
    covers = (CoveredIncident(32, "vanished", "critical", "x" * 500),) * 7
    return IncidentDetail(
        31, run, 12480, about, case.members, layers, summary, None, cause, fix, parts, headline, 30, covers
    )


def sealed(*arguments, **more):
    return payload.build_payload(dossier(*arguments, **more), "opened", 1, URL, 1.7e9)


def test_a_message_has_the_documented_shape():
    message = json.loads(sealed([f"blocks.{i}.attn.lora_A" for i in range(10)], [7, 8, 9]))
    assert message["type"] == "gradient.collapse.opened"
    assert message["timestamp"] == "2023-11-14T22:13:20.000Z"
    data = message["data"]
    assert list(data) == [
        "version", "incident", "run", "rule", "severity", "state", "resolution", "step", "opened_step", "counts",
        "worst", "prefixes", "title", "caused_by", "also", "explanation", "summary", "likely_cause", "fix", "url",
        "runbook_url",
        "picture_url",
    ]  # fmt: skip
    assert data["url"] == f"{URL}/runs/sdxl?incident=31"
    assert data["runbook_url"] == f"{URL}/runbooks/collapse"
    assert data["picture_url"] == f"{URL}/api/v1/incidents/31/picture.png"
    assert data["counts"] == {"firing": 3, "ever": 3, "layers": 10}
    assert data["worst"][0] == {"name": "blocks.7.attn.lora_A", "since_step": 340, "value": 6.1e-7, "baseline": 3.1e-3}
    assert data["prefixes"] == ["blocks.7-9.attn.lora_A"]
    assert list(data["explanation"]) == ["what", "since", "do_first", "why", "evidence", "more"]
    assert data["title"] == "[critical] sdxl: 3 parameters collapsed (#31)"
    assert (
        data["summary"]
        == data["explanation"]["what"]
        == "3 of 10 parameters (blocks.7-9.attn.lora_A) fell from 0.0031 to 6.1e-7 at step 340."
    )


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_message_is_what_its_schema_says(kind):
    schema = schemas.notification()
    for rule in NAMES:
        about = dossier(["a.0", "a.1"], [0])
        about = replace(about, incident=replace(about.incident, rule=rule))
        message = json.loads(payload.build_payload(about, kind, 1, URL, 1.7e9))
        schema.validate(message)
        for wrong in ({"type": f"gradient.{rule}.closed"}, {"type": f"gradient.x.{kind}"}, {"timestamp": 3}):
            assert not schema.is_valid(message | wrong)
        for missing in message["data"]:
            assert not schema.is_valid(message | {"data": {k: v for k, v in message["data"].items() if k != missing}})
    schema.validate(json.loads(payload.build_test_payload(URL, 1.7e9)))


def test_twenty_thousand_hostile_names_fit():
    quotes, turned = '."\\{' * 20, "\u202e" * 100
    names = [f"{chr(0x1F600 + i % 70) * 250}{quotes}{turned}{i}.{'y' * 40}" for i in range(20_000)]
    body = sealed(names, range(0, 20_000, 2), run="r" * 100)
    assert len(body) < payload.MAX_BODY
    assert json.loads(body)["data"]["counts"]["ever"] == 10_000


def test_long_names_without_anything_in_common_fit():
    names = [f"{chr(0x1F600 + i) * 490}.{i}a" for i in range(38)]
    body = sealed(names, range(0, 38, 2), run="r" * 100)
    assert len(body) < payload.MAX_BODY
    assert len(json.loads(body)["data"]["prefixes"]) == 19


hostile = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=500)


@given(st.lists(hostile, min_size=1, max_size=40, unique=True))
@settings(max_examples=40)
def test_any_names_fit(names):
    body = sealed(names, range(0, len(names), 2), run="r" * 100)
    assert len(body) < payload.MAX_BODY
    assert json.loads(body)["data"]["prefixes"]


@given(st.text(max_size=300), st.integers(3, 400))
@settings(max_examples=80)
def test_a_clipped_text_keeps_its_beginning_and_its_limit(text, size):
    clipped = payload.truncate_bytes(text, size)
    assert len(json.dumps(clipped, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2 <= size
    assert clipped == text or text.startswith(clipped[:-1])
