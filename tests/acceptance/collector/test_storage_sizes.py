"""What takes how much room: counted now and then, and listed with the runs that are there."""

import time
from datetime import datetime

import httpx
import pytest
from fastapi.testclient import TestClient

from gradcanary_server.app import create_app
from gradcanary_server.settings import Settings
from support import schemas
from support.streams import Session, Stream, healthy


def test_runs_are_listed_by_their_weight(module_collector):
    def asked(**query):
        return schemas.hold(module_collector.get("/api/v1/storage", **query))

    for run, steps in (("light", 20), ("heavy", 1200), ("middling", 100)):
        Session(module_collector.url, run=run).send(Stream(healthy(steps, 20)))
    found = asked()
    assert [each["run"] for each in found["runs"]] == ["heavy", "middling", "light"]
    heavy, middling, light = found["runs"]
    assert (heavy["step"], heavy["archived"]) == (1199, False)
    # Twelve and five times the numbers; which of them have left the log for tiles, where they take less, is not known.
    assert heavy["bytes"] > 2 * middling["bytes"] > 2 * light["bytes"] > 2_000
    assert found["bytes"] > heavy["bytes"] + middling["bytes"] + light["bytes"], "the store's own is in it"
    assert found["raw_days"] is None
    assert found["others"] == {"runs": 0, "bytes": 0}

    cut = asked(limit=1)
    assert [each["run"] for each in cut["runs"]] == ["heavy"]
    assert cut["others"] == {"runs": 2, "bytes": middling["bytes"] + light["bytes"]}

    # What is counted holds for a minute; which runs there are is looked up.
    Session(module_collector.url, run="newest").send(Stream(healthy(10, 2)))
    httpx.patch(f"{module_collector.url}/api/v1/runs/light", json={"archived": True, "name": "put-aside"})
    httpx.delete(f"{module_collector.url}/api/v1/runs/heavy").raise_for_status()
    again = asked()
    assert [(each["run"], each["bytes"], each["archived"]) for each in again["runs"]] == [
        ("middling", middling["bytes"], False),
        ("put-aside", light["bytes"], True),
        ("newest", None, False),
    ]
    assert again["counted"] == found["counted"]


def test_a_list_has_a_length(module_collector):
    for limit in (0, 1_001):
        assert module_collector.get("/api/v1/storage", limit=limit).status_code == 422


def test_before_when_no_sample_goes_is_told(tmp_path):
    """In a store at which nobody looked yet, whose clock may be wrong."""
    for days, expected in (({}, None), ({"GRADCANARY_RAW_DAYS": "30"}, 86_400.0)):
        with TestClient(create_app(Settings.from_env(days, data=tmp_path)), base_url="http://localhost") as client:
            found = schemas.hold(client.get("/api/v1/storage"))
        until = found["raw_until"] and datetime.fromisoformat(found["raw_until"]).timestamp() - time.time()
        assert until == pytest.approx(expected, abs=600.0)
