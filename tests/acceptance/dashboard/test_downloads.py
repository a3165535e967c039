"""What a page shows as CSV: every sample, each number as it was sent, whatever the names are."""

import asyncio
import csv
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest

from gradcanary import wire
from gradcanary_dashboard.address import runs as runs_address
from gradcanary_dashboard.address.comparison import CompareView
from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.components import share_bar
from gradcanary_dashboard.exports import lists
from gradcanary_dashboard.figures import metrics as metric_figures
from gradcanary_dashboard.routes import downloads
from support.streams import Session, Stream, collapsed, healthy

RUN, OTHER = "one-run", "-other"
NAMES = ("=1+1", "a,b", 'c"d', *(f"blocks.{number}.weight" for number in range(5)))
STREAM = Stream(healthy(300, 8), 1 / np.arange(1, 301), names=NAMES)
LATER = Stream(collapsed(300, 8, [0], at=100), np.full(300, 0.5), first_step=40, names=NAMES)


@pytest.fixture(scope="module")
def url(module_collector: Any) -> str:
    """A collector that holds two runs of the same layers, one of which logs scores by tags."""
    for name, stream in ((RUN, STREAM), (OTHER, LATER)):
        session = Session(module_collector.url, run=name, session=f"session-of{name}")
        session.put_hello(stream.hello()).raise_for_status()
        batch = stream.batch(0, 300)
        logged = [
            wire.Metric("-score", (("host", f"n{host:02}"),), (3, 290), wire.column("d", [host / 3, float("nan")]))
            for host in range(14)
        ]
        more = logged if name == RUN else ()
        session.post_batch(0, replace(batch, metrics=(*batch.metrics, *more))).raise_for_status()
    return str(module_collector.url)


def table(url: str, path: str, **query: object) -> tuple[str, list[list[str]]]:
    """The name of the file, and its rows."""
    answer = httpx.get(f"{url}{path}{f'?{urlencode(query)}' if query else ''}", trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    name = answer.headers["content-disposition"].removeprefix('attachment; filename="').removesuffix('"')
    return name, list(csv.reader(answer.text.splitlines()))


def test_the_heatmap_s_is_that_of_the_collector(url: str) -> None:
    view = View(stat="norm", from_step=5, to_step=9, rows="weight")
    name, rows = table(url, share_bar.csv_url(RUN, view))
    assert name == "one-run-norm-5-9.csv"
    asked = {"stat": "norm", "match": "weight", "from": 5, "to": 9}
    assert rows == table(url, f"/api/v1/runs/{RUN}/export.csv", **asked)[1]
    assert len(rows) == 6


def test_a_metric_s_has_the_lines_that_are_drawn(url: str) -> None:
    known = metric_figures.of(httpx.get(f"{url}/api/v1/runs/{RUN}", trust_env=False).json()["metrics"])
    score = next(panel for panel in known if panel.names == ["-score"])
    name, rows = table(url, "/_download/metrics", run=RUN, key="loss", search="?from=2&to=290&x=time")
    assert name == "one-run-loss-2-290.csv"
    assert rows[0] == ["step", "time", "loss"]
    assert [(int(step), float(value)) for step, _, value in rows[1:]] == [(at, 1 / (at + 1)) for at in range(2, 291)]
    _, rows = table(url, "/_download/metrics", run=RUN, key=score.key)
    assert rows[0][2:] == [f"'-score{{host=n{host:02}}}" for host in range(12)]
    assert [[row[0], *row[2:4]] for row in rows[1:]] == [["3", "0.0", repr(1 / 3)], ["290", "nan", "nan"]]
    name, rows = table(url, "/_download/metrics", run=RUN, key=score.key, search=f"?lines={score.series[13].ident}")
    assert (name, rows[0][2:]) == ("one-run--score.csv", ["'-score{host=n13}"])
    name, rows = table(url, "/_download/metrics", run=RUN, key="rates")
    assert (name, rows[0][2:], len(rows)) == ("one-run-learning-rate.csv", ["lr0"], 301)


def test_a_layer_s_has_every_stat_that_was_measured(url: str) -> None:
    name, rows = table(url, "/_download/layer", run=RUN, layer="=1+1", search="?from=7&to=7")
    assert name == "one-run-_1_1-7-7.csv"
    assert rows[0] == ["step", "time", "absmax =1+1", "norm =1+1", "nonfinite =1+1"]
    assert np.float32(rows[1][2:]).tolist() == [STREAM.absmax[7, 0], STREAM.absmax[7, 0] * 3, 0]
    assert len(rows) == 2
    name, rows = table(url, share_bar.csv_url(RUN, View(), "layer", layer="4", stat="norm"))
    assert (name, rows[0], len(rows)) == ("one-run-blocks.1.weight-norm.csv", ["step", "time", f"norm {NAMES[4]}"], 301)


def test_the_table_of_layers_has_all_of_them_worst_first(url: str) -> None:
    name, rows = table(url, share_bar.csv_url(OTHER, View(), "layers"))
    assert name == "-other-layers.csv"
    told = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert len(told) == 8
    assert (told[0]["name"], told[0]["state"], told[0]["shape"]) == ("'=1+1", "measured", "8x64")
    assert told[0]["rules"].startswith("collapse")
    assert np.float32(told[0]["absmax"]) == LATER.absmax[-1, 0]
    _, matching = table(url, share_bar.csv_url(OTHER, View(rows="weight|a,b"), "layers"))
    assert sorted(row[0] for row in matching[1:]) == ["a,b", *NAMES[3:]]
    _, refused = table(url, share_bar.csv_url(OTHER, View(rows="("), "layers"))
    assert len(refused) == 9


def test_runs_are_all_of_a_list_and_say_what_their_cards_do(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, rows = table(url, "/_download/runs", search="?sort=name&after=x")
    assert name == "runs.csv"
    found = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert [(each["run"], each["layers"], each["firing"]) for each in found] == [("'-other", "8", "1"), (RUN, "8", "0")]
    assert "collapsed at step" in found[0]["says"]
    name, rows = table(url, share_bar.runs_url("/?text=one&state=live"))
    assert (name, [row[0] for row in rows[1:]]) == ("runs-one-live.csv", [RUN])
    monkeypatch.setattr(runs_address, "PER_PAGE", 1)
    with closing(Collector(url)) as api:
        _, pieces = lists.of_runs(api, runs_address.Listing(sort="name"))
        assert len(b"".join(pieces).splitlines()) == 3, "also what is on other pages"


def test_incidents_are_all_of_a_choice_and_one_is_all_its_layers(url: str) -> None:
    name, rows = table(url, "/_download/incidents", search="?severity=critical&run=other&before=1")
    assert name == "incidents-critical-other.csv"
    [found] = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert (found["run"], found["rule"], found["state"], found["firing"]) == ("'-other", "collapse", "open", "1")
    name, rows = table(url, "/_download/incident", number=found["id"])
    assert name == f"-other-incident-{found['id']}.csv"
    [member] = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    assert (member["name"], member["until_step"]) == ("'=1+1", "")
    assert float(member["value"]) < 1e-4 < float(member["baseline"])
    assert httpx.get(f"{url}/_download/incident?number=99", trust_env=False).status_code == 424


def test_a_comparison_s_curves_stand_beside_each_other(url: str) -> None:
    wanted = CompareView((RUN, OTHER), View(layer="=1+1", to_step=60))
    name, rows = table(url, share_bar.compared_url(wanted, "compare"))
    assert name == "compare-one-run--other-absmax-0-60.csv"
    heads = ("absmax =1+1", "loss", "lr0")
    assert rows[0] == ["step", *(f"{run} {head}" for run in ("one-run", "'-other") for head in heads)]
    assert [int(row[0]) for row in rows[1:]] == list(range(61))
    for step, *cells in rows[1:]:
        at = int(step)
        assert (np.float32(cells[0]), float(cells[1])) == (STREAM.absmax[at, 0], 1 / (at + 1))
        if at < 40:
            assert cells[3:] == ["", "", ""]
        else:
            assert (np.float32(cells[3]), float(cells[4])) == (LATER.absmax[at - 40, 0], 0.5)
    aligned = replace(wanted, align="first")
    _, rows = table(url, share_bar.compared_url(aligned, "compare"))
    assert rows[0][0] == "steps since the first of each run"
    assert np.float32(rows[6][4]) == LATER.absmax[5, 0]
    assert rows[6][0] == "5"


def test_a_comparison_s_differences_are_told_of_every_layer(url: str) -> None:
    name, rows = table(url, share_bar.compared_url(CompareView((RUN, OTHER)), "differences"))
    assert name == "compare-one-run--other-absmax-differences.csv"
    levels, sums = ["one-run absmax", "'-other absmax"], ["one-run accumulator", "'-other accumulator"]
    assert rows[0] == ["layer", "decades", "of", "first_step", "last_step", *levels, *sums]
    assert len(rows) == 9
    worst = rows[1]
    assert (worst[0], worst[2]) == ("'=1+1", "'-other")
    assert -4 < float(worst[1]) < -2
    assert float(worst[1]) == pytest.approx(np.log10(float(worst[6]) / float(worst[5])), abs=2e-3)


def test_missing_downloads_are_no_server_error(url: str) -> None:
    asked: list[tuple[str, dict[str, str]]] = [
        ("/_download", {"run": "no-such-run"}),
        ("/_download", {"run": RUN, "search": "?rows=("}),
        ("/_download/metrics", {"run": RUN, "key": "no-such-metric"}),
        ("/_download/layer", {"run": RUN, "layer": "99"}),
        ("/_download/layers", {"run": "no-such-run"}),
        ("/_download/compare", {"search": f"?run={RUN}"}),
        ("/_download/differences", {"search": f"?run={RUN}&run=no-such-run"}),
    ]
    for path, query in asked:
        answer = httpx.get(f"{url}{path}?{urlencode(query)}", trust_env=False, timeout=60)
        assert (answer.status_code, answer.headers["content-type"]) == (424, "text/plain; charset=utf-8"), path


def test_a_download_that_is_broken_off_is_closed_once_its_piece_is_made() -> None:
    begun, go, closed = threading.Event(), threading.Event(), threading.Event()
    order: list[object] = []

    def pieces() -> Iterator[bytes]:
        begun.set()
        assert go.wait(30)
        order.append("piece")
        yield b"1\n"

    def close() -> None:
        order.append(threading.get_ident())
        closed.set()

    def made(stack: ExitStack) -> tuple[str, Iterator[bytes]]:
        stack.callback(close)
        return "x.csv", pieces()

    async def broken_off() -> None:
        answer = await downloads._file_answer(made)
        body = cast(AsyncIterator[bytes], cast(Any, answer).body_iterator)
        reading = asyncio.ensure_future(anext(body))
        assert await asyncio.to_thread(begun.wait, 30)
        reading.cancel()
        await asyncio.wait([reading])
        go.set()
        assert await asyncio.to_thread(closed.wait, 30)
        order.append(threading.get_ident())

    # In a thread of its own: the browser tests leave an event loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(broken_off())).result()
    what, closing, loop = order
    assert what == "piece"
    assert closing != loop
