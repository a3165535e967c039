"""What a page asks for when it needs it, of the collector's own port: metrics in sight, exact cells."""

import re
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest

from gradcanary import wire
from gradcanary_dashboard.figures import metrics as metric_figures
from support.streams import Session, Stream, healthy

RUN = "some-run"
STREAM = Stream(healthy(40, 4), np.linspace(1, 0.5, 40))


@pytest.fixture(scope="module")
def url(module_collector: Any) -> str:
    """A collector that holds a run with 20 metrics of 9 lines each, and one of 40."""
    session = Session(module_collector.url, run=RUN)
    session.put_hello(STREAM.hello()).raise_for_status()
    counts = [*((f"score{number:02}", 9) for number in range(20)), ("load", 40)]
    logged = [
        wire.Metric(name, (("host", f"n{host:02}"),), (0, 39), wire.column("d", [1.0 * host, 2.0 * host]))
        for name, hosts in counts
        for host in range(hosts)
    ]
    batch = STREAM.batch(0, 40)
    session.post_batch(0, replace(batch, metrics=(*batch.metrics, *logged))).raise_for_status()
    return str(module_collector.url)


def ask(url: str, path: str, **query: object) -> httpx.Response:
    return httpx.get(f"{url}{path}?{urlencode(query, doseq=True)}", trust_env=False, timeout=60)


def drawn(url: str, keys: list[str], search: str = "") -> dict[str, Any]:
    answer = ask(url, "/_metrics", run=RUN, key=keys, search=search)
    assert answer.status_code == 200
    return {panel["key"]: panel for panel in answer.json()["panels"]}


def lines(panel: dict[str, Any]) -> list[str]:
    return [trace["name"] for trace in panel["figure"]["data"] if "meta" in trace]


def test_visible_metrics_come_in_one_answer(url: str) -> None:
    """More lines than the collector answers at once."""
    known = metric_figures.of(ask(url, f"/api/v1/runs/{RUN}").json()["metrics"])
    found = drawn(url, [panel.key for panel in known])
    assert set(found) == {panel.key for panel in known}
    assert {len(lines(found[panel.key])) for panel in known if panel.names[0].startswith("score")} == {9}
    load = next(panel for panel in known if panel.names == ["load"])
    assert lines(found[load.key]) == [f"host=n{host:02}" for host in range(12)]
    assert len(found[load.key]["legend"]) == found[load.key]["of"] == 40
    chosen = drawn(url, [load.key], f"?lines={load.series[33].ident}&from=0&to=10")
    assert lines(chosen[load.key]) == ["host=n33"]
    assert chosen[load.key]["figure"]["layout"]["xaxis"]["range"] == [-0.5, 10.5]
    assert {panel["figure"]["layout"]["xaxis"]["range"][1] for panel in found.values()} == {39.5}


def test_a_cell_has_every_digit_of_its_samples(url: str) -> None:
    one = ask(url, "/_cell", run=RUN, stat="absmax", layer=2, first=7, last=7).json()["text"]
    assert np.float32(one) == STREAM.absmax[7, 2]
    several = ask(url, "/_cell", run=RUN, stat="absmax", layer=[0, 3], first=4, last=11).json()["text"]
    least, most, mean = re.fullmatch(r"(\S+) to (\S+), mean (\S+)", several).groups()  # type: ignore[union-attr]
    held = STREAM.absmax[4:12, [0, 3]]
    assert (np.float32(least), np.float32(most)) == (held.min(), held.max())
    assert float(mean) == pytest.approx(float(held.mean()), rel=1e-5)
    assert ask(url, "/_cell", run=RUN, stat="absmax", layer=0, first=90, last=99).json() == {"text": ""}


def test_missing_figures_are_no_server_error(url: str) -> None:
    for path, query in (
        ("/_metrics", {"key": "loss"}),
        ("/_cell", {"stat": "absmax", "layer": 0, "first": 0, "last": 0}),
    ):
        assert ask(url, path, run="no-such-run", **query).status_code == 424
    assert ask(url, "/_cell", run=RUN, stat="nonsense", layer=0, first=0, last=0).status_code == 424
    assert ask(url, "/_metrics", run=RUN, key="no-such-panel").json() == {"panels": []}
