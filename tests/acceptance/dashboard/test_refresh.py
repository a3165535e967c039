"""What a page asks every second, of the collector's own port: is there anything new?"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx
import numpy as np
import pytest

from gradcanary import wire
from gradcanary_dashboard.analysis.arrays import encode, read
from gradcanary_dashboard.collector.client import Answer
from gradcanary_dashboard.collector.client import Collector as Api
from gradcanary_dashboard.pages import registry
from gradcanary_dashboard.pages.registry import runs_version
from support.streams import Session, Stream, collapsed

RUN = "some-run"
PAGE = f"/runs/{RUN}"
STREAM = Stream(np.full((40, 4), 1e-3, np.float32))


def begin(url: str, run: str) -> Session:
    session = Session(url, run=run)
    session.put_hello(STREAM.hello()).raise_for_status()
    return session


@pytest.fixture
def api(module_collector: Any) -> Iterator[Api]:
    api = Api(module_collector.url)
    yield api
    api.close()


def answer(api: Api, address: str, shown: object) -> int:
    path, _, search = address.partition("?")
    asked = {"path": path, "search": search, "shown": json.dumps(shown)}
    status = httpx.post(f"{api.url}/_refresh", json=asked).status_code
    assert status in (200, 204)
    return status


def shown(api: Api) -> dict[str, object]:
    """What a page of the run that was filled just now holds, after its first refresh, which brings the other runs."""
    return {"version": api.run(RUN).version, "chosen": "", "slots": {"vs-runs": ""}}


def ask(api: Api, path: str, shown: str = "", **headers: str) -> httpx.Response:
    """What a page asks that holds this."""
    return httpx.post(f"{api.url}/_refresh", json={"path": path, "search": "", "shown": shown}, headers=headers)


def whole(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a heatmap of which only new columns came, as the browser puts them together."""
    known, told = (figure["data"][0]["z"] for figure in (before, after))
    rows, columns = map(int, told["shape"].split(","))
    added = read({**told, "shape": f"{rows}, {columns - told['kept']}"})
    return encode(np.concatenate([read(known)[:, : told["kept"]], added], axis=1))


def test_news_brings_what_changed_and_nothing_else(api: Api) -> None:
    session = begin(api.url, "changing")
    session.post_batch(0, STREAM.batch(0, 20, change_records=True)).raise_for_status()
    first = ask(api, "/runs/changing").json()
    page, _ = registry.find("/runs/changing")
    assert first["page"] == "run"
    assert set(page.slots) | {"run-page-state", "outage"} == set(first["slots"]), "who has nothing gets all of it"
    assert ask(api, "/runs/changing", first["slots"]["run-page-state"]).status_code == 204
    session.post_batch(1, STREAM.batch(20, 40)).raise_for_status()
    second = ask(api, "/runs/changing", first["slots"]["run-page-state"]).json()["slots"]
    anew = ask(api, "/runs/changing").json()["slots"]
    assert {"tiles", "heatmap", "trend", "metrics-state"} <= set(second)
    assert not {"panels", "csv", "refusal", "accumulators", "legend", "layer-rows", "option-norm"} & set(second)
    assert second["heatmap"]["data"][0]["z"]["kept"] == 20, "a column for each step, and twenty are known"
    second["heatmap"]["data"][0]["z"] = whole(first["slots"]["heatmap"], second["heatmap"])
    shown = {name: value for name, value in {**first["slots"], **second}.items() if name != "run-page-state"}
    assert shown == {name: value for name, value in anew.items() if name != "run-page-state"}
    assert json.loads(second["run-page-state"]) == json.loads(anew["run-page-state"])


def test_unchanged_slots_are_left_out_after_an_outage(api: Api) -> None:
    begin(api.url, RUN)
    held = ask(api, PAGE).json()["slots"]["run-page-state"]
    healed = ask(api, PAGE, json.dumps({**json.loads(held), "down": True})).json()["slots"]
    assert healed.keys() == {"outage", "run-page-state"}
    assert healed["outage"] is None
    assert ask(api, PAGE, healed["run-page-state"]).status_code == 204


def test_a_loss_by_a_hundred_tags_is_no_more_to_compare(module_collector: Any) -> None:
    hosts = [wire.Metric("loss", (("host", f"n{number}"),), (3,), wire.column("d", [0.5])) for number in range(101)]
    for run in ("of-many", "of-many-too"):
        session = begin(module_collector.url, run)
        session.post_batch(0, replace(STREAM.batch(0, 40, change_records=True), metrics=hosts)).raise_for_status()
    asked = {"path": "/compare", "search": "?run=of-many&run=of-many-too", "shown": ""}
    answered = httpx.post(f"{module_collector.url}/_refresh", json=asked).json()
    assert answered["slots"]["outage"] is None
    assert answered["page"] == "compare"


def test_refused_question_is_no_outage(module_collector: Any) -> None:
    asked = {"path": "/", "search": "?after=nonsense", "shown": ""}
    banner = httpx.post(f"{module_collector.url}/_refresh", json=asked).json()["slots"]["outage"]
    assert "cannot be filled" in json.dumps(banner)
    assert "when it is back" not in json.dumps(banner)


@pytest.mark.parametrize("slots", [None, 3, [], {"tiles": 3}, {"nothing": "x"}])
def test_invalid_slots_are_answered_in_full(module_collector: Any, slots: object) -> None:
    held = json.dumps({"version": "old", "chosen": "", "slots": slots})
    answered = httpx.post(f"{module_collector.url}/_refresh", json={"path": "/", "search": "", "shown": held}).json()
    assert set(registry.RUNS.slots) <= set(answered["slots"])


def test_a_large_answer_is_packed_for_those_who_unpack_it(api: Api) -> None:
    begin(api.url, RUN)
    packed, plain = ask(api, PAGE), ask(api, PAGE, **{"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.json()["slots"].keys() == plain.json()["slots"].keys()
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert packed.headers["cache-control"] == plain.headers["cache-control"] == "no-store"


def test_refresh_after_a_step(api: Api) -> None:
    session = begin(api.url, RUN)
    known = shown(api)
    for page in (PAGE, f"{PAGE}/layers/0"):
        assert answer(api, page, known) == 204
        assert answer(api, page, {**known, "incidents": "what was told before"}) == 200
        assert answer(api, page, {**known, "down": True}) == 200
    session.post_batch(0, STREAM.batch(0, 40)).raise_for_status()
    for page in (PAGE, f"{PAGE}/layers/0"):
        assert answer(api, page, known) == 200
        assert answer(api, page, shown(api)) == 204


def test_the_list_of_runs_has_news_once_a_run_says_hello(api: Api) -> None:
    known = {"version": runs_version(api), "chosen": ""}
    assert answer(api, "/", known) == 204
    begin(api.url, "another")
    assert answer(api, "/", known) == 200


def test_refresh_after_a_change_of_the_address(api: Api) -> None:
    begin(api.url, "chosen")
    known = {"version": runs_version(api, {}, "state=live"), "chosen": "state=live"}
    assert answer(api, "/?state=live", known) == 204
    assert answer(api, "/", known) == 200


def test_an_ack_a_silence_and_its_end_are_news_on_the_pages_of_incidents(api: Api) -> None:
    Session(api.url, run="fell").send(Stream(collapsed(160, 24, (0, 2), 130)))
    [listed] = api.incidents(run="fell").body["incidents"]
    paths = ("/incidents", "/incidents?run=fell", f"/incidents/{listed['id']}")
    known = {path: filled(api, path) for path in paths}
    wish = {"run": "fell", "by": "ada", "until": (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()}
    for method, path, body in (
        ("POST", f"/incidents/{listed['id']}/ack", {"by": "ada"}),
        ("POST", "/silences", wish),
        ("DELETE", "/silences/1", None),
    ):
        assert {answer(api, page, held) for page, held in known.items()} == {204}
        api.change(method, path, body)
        assert {answer(api, page, held) for page, held in known.items()} == {200}
        known = {page: filled(api, page) for page in known}


def filled(api: Api, address: str) -> object:
    """What a page holds that was filled just now."""
    path, _, search = address.partition("?")
    page, arguments = registry.find(path)
    return json.loads(page.ask(api, arguments, search, {})["shown"])


def test_an_endpoint_that_was_given_up_is_news(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcanary_dashboard.collector.client.ENDPOINTS_FOR_S", -1.0)
    before = runs_version(api)
    gone = {
        "id": 1,
        "name": "",
        "url": "http://gone/",
        "state": "disabled",
        "since": "",
        "reason": "",
        "disabled_by": "failures",
    }
    made = httpx.post(f"{api.url}/api/v1/endpoints", json={"url": "http://8.8.8.8/"}).json()
    assert made["disabled_by"] is None
    assert runs_version(api) == before, "an endpoint that works is no news"
    monkeypatch.setattr(api, "endpoints", lambda: Answer({"endpoints": [{**made, **gone}]}, ""))
    assert runs_version(api) != before


@pytest.mark.parametrize("held", ["", "{", "[1]", "[" * 5_000, '{"version": 3}', '{"version": "x", "chosen": null}'])
@pytest.mark.parametrize("path", ["/", "/runs/nobody", "x"])
def test_refresh_of_an_unknown_state(module_collector: Any, path: str, held: str) -> None:
    asked = httpx.post(f"{module_collector.url}/_refresh", json={"path": path, "search": "", "shown": held})
    assert asked.status_code == (204 if path == "x" else 200), "an unknown address has no news"


def test_many_tabs_at_once_keep_nobody_else_from_the_collector(api: Api) -> None:
    begin(api.url, "crowded")

    def ask(_tab: int) -> int:
        asked = {"path": "/runs/crowded", "search": "", "shown": "{}x"}
        return httpx.post(f"{api.url}/_refresh", json=asked, timeout=120).status_code

    with ThreadPoolExecutor(60) as tabs:
        asked = [tabs.submit(ask, tab) for tab in range(60)]
        for _ in range(5):
            httpx.get(f"{api.url}/api/v1/runs", timeout=8).raise_for_status()
        assert {each.result() for each in asked} == {200}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"path": "/"}', b'{"path": "/", "search": "", "shown": 3}']
)
def test_refresh_without_its_three_texts_is_refused(module_collector: Any, body: bytes) -> None:
    assert httpx.post(f"{module_collector.url}/_refresh", content=body).status_code == 400


def test_refresh_has_no_state_in_its_address(api: Api) -> None:
    begin(api.url, RUN)
    held = ask(api, PAGE).json()["slots"]["run-page-state"]
    again = ask(api, PAGE, held)
    assert again.status_code == 204
    assert again.request.url.query == b""


def test_refresh_of_a_body_beyond_the_limit_is_refused(module_collector: Any) -> None:
    asked = {"path": "/", "search": "", "shown": "x" * 2**20}
    assert httpx.post(f"{module_collector.url}/_refresh", json=asked).status_code == 413
