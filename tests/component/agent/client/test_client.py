"""``gradcanary.Client`` against a real collector: results are what was ingested, errors say what to do."""

import getpass
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest

import gradcanary
from gradcanary import wire
from gradcanary.client import AccessError, CollectorError, NotFoundError, UnreachableError, VersionError
from support import streams
from support.collectors import Collector

AGENT = Path(gradcanary.__file__).parents[1]
STEPS = 6_000
NAMES = streams.layer_names(4)


@pytest.fixture(scope="module")
def client(module_collector):
    return gradcanary.Client(module_collector.url)


@pytest.fixture(scope="module")
def absmax():
    values = streams.healthy(STEPS, 4)
    values[100:110, 1] = np.nan  # no gradient
    values[200:205, 2] = np.inf
    values[300, 3] = 0
    return values


@pytest.fixture(scope="module")
def run(module_collector, client, absmax):
    """A run whose series does not fit into one answer."""
    stream = streams.Stream(absmax, streams.falling_loss(STEPS))
    streams.Session(module_collector.url, run="long").send(stream, size=2000)
    return client.run("long")


def finite(values):
    return np.where(np.isfinite(values), values, np.nan)


def test_a_run_is_what_the_api_says(client, run):
    assert (run.name, run.state, run.step, run.layer_count) == ("long", "live", STEPS - 1, 4)
    assert run.loss == pytest.approx(0.2)
    assert run.created.tzinfo is not None
    assert run.url == f"{client.url}/runs/long"
    assert run in client.runs(text="long")
    assert [layer.name for layer in run.layers()] == list(NAMES)
    assert run.layers()[0].absmax == pytest.approx(run.series(layers=0, start=STEPS - 1).to_numpy()[0, 0])


def test_each_sample_of_a_long_run_is_read(run, absmax):
    series = run.series("absmax")
    assert series.buckets.steps.tolist() == list(range(STEPS))
    assert set(series.buckets.widths) == {1}
    np.testing.assert_array_equal(series.to_numpy(), finite(absmax))
    np.testing.assert_array_equal(series.to_numpy("nonfinite"), np.isinf(absmax))
    np.testing.assert_array_equal(series.to_numpy("count"), np.isfinite(absmax))
    parts = list(run.iter_series("absmax"))
    assert len(parts) == 2
    assert [step for part in parts for step in part.buckets.steps] == list(range(STEPS))


def test_frames_hold_what_was_ingested(run, absmax):
    series = run.series("absmax", end=999)
    frame, other = series.to_pandas(), series.to_polars()
    assert " ".join(frame.columns) == "step bucket_steps time layer min mean max count nonfinite"
    assert list(frame.columns) == other.columns
    sampled = [(step, NAMES[number]) for number in range(4) for step in range(1000) if absmax[step, number] > -1]
    assert list(zip(frame["step"], frame["layer"], strict=True)) == sampled
    for value in ("min", "mean", "max"):
        wide = frame.pivot(index="step", columns="layer", values=value)[list(NAMES)]
        np.testing.assert_array_equal(wide.to_numpy(), finite(absmax[:1000]))
    assert frame["time"].iloc[1] == pd.Timestamp("2023-11-14T22:13:20.1Z")
    assert frame[frame["nonfinite"] > 0]["step"].tolist() == [200, 201, 202, 203, 204]
    for name in frame.columns:
        assert other[name].to_list() == frame[name].tolist() or name in ("time", "min", "mean", "max")
        if name in ("min", "mean", "max"):
            np.testing.assert_array_equal(other[name].to_numpy(), frame[name].to_numpy())
    assert other["time"][1] == datetime.fromtimestamp(1.7e9 + 0.1, tz=timezone.utc)


def test_a_bucket_is_not_taken_for_a_sample(run, absmax):
    series = run.series("absmax", layers=0, points=100)
    assert set(series.buckets.widths) == {64}
    with pytest.raises(ValueError, match=r"buckets of several samples: give value='min', 'mean' or 'max'"):
        series.to_numpy()
    np.testing.assert_allclose(series.to_numpy("min")[0, 0], absmax[:64, 0].min(), rtol=3e-4)
    np.testing.assert_allclose(series.to_numpy("mean")[0, 0], absmax[:64, 0].mean(dtype=np.float64), rtol=3e-4)
    assert series.to_pandas()["count"].tolist()[0] == 64


@pytest.mark.parametrize(
    ("layers", "numbers"),
    [
        (NAMES[2], [2]),
        ("lora_A", [0, 2]),
        (re.compile(r"blocks\.1"), [2, 3]),
        ([3, NAMES[0]], [3, 0]),
        (1, [1]),
        ([], []),
        (None, [0, 1, 2, 3]),
    ],
)
def test_layers_are_names_numbers_or_an_expression(run, absmax, layers, numbers):
    series = run.series("absmax", layers, start=5, end=14)
    assert [line.layer for line in series] == numbers
    assert series.buckets.steps.tolist() == (list(range(5, 15)) if numbers else [])
    if numbers:
        np.testing.assert_array_equal(series.to_numpy(), absmax[5:15, numbers])
    assert len(series.to_pandas()) == 10 * len(numbers) == len(series.to_polars())


def test_more_parameters_than_an_answer_has(module_collector, client):
    values = streams.healthy(30, 130)
    streams.Session(module_collector.url, run="wide").send(streams.Stream(values))
    np.testing.assert_array_equal(client.run("wide").series().to_numpy(), values)
    assert client.run("wide").series(points=10).to_numpy("count").shape == (8, 130)


def test_a_run_without_samples_has_empty_results(module_collector, client):
    streams.Session(module_collector.url, run="new").put_hello(streams.hello(None))
    streams.Session(module_collector.url, run="named").put_hello(streams.hello(streams.layer_set(NAMES)))
    for name in ("new", "named"):
        run = client.run(name)
        for empty in (run.series(), run.metrics(), run.heatmap(), run.incidents()):
            assert len(empty.to_pandas()) == 0
            assert len(empty.to_polars()) == 0


def test_metrics_are_points_at_their_steps(module_collector, client, run):
    loss = run.metrics("loss")["loss"]
    assert loss.buckets.steps.tolist() == list(range(STEPS))
    np.testing.assert_array_equal(loss.to_numpy(), streams.falling_loss(STEPS))
    np.testing.assert_array_equal(run.metrics("loss").to_numpy(), streams.falling_loss(STEPS)[:, None])
    stream = streams.Stream(streams.healthy(1, 1))
    steps = tuple(range(0, 40_000, 997))
    first = stream.batch(0, 1)
    scores = [
        wire.Metric("score", (("part", str(part)),), steps, wire.column("d", [part + step / 7 for step in steps]))
        for part in range(104)
    ]
    odd = wire.Metric("=odd, name", (), (5, 7), wire.column("d", [np.nan, 1e-300]))
    session = streams.Session(module_collector.url, run="scores")
    session.put_hello(stream.hello())
    session.post_batch(0, wire.dump(replace(first, metrics=(*scores, odd, *first.metrics)))).raise_for_status()
    found = client.run("scores").metrics()
    assert len(found) == 106
    assert found["=odd, name"].values.nonfinite.tolist() == [1, 0]
    np.testing.assert_array_equal(found["=odd, name"].to_numpy(), [np.nan, 1e-300])
    line = found["score{part=103}"]
    assert tuple(line.buckets.steps) == steps
    assert line.values.mean.tolist() == [103 + step / 7 for step in steps]
    assert set(line.buckets.widths) == {1}
    frame = found.to_polars()
    assert frame.filter((frame["metric"] == "score") & (frame["tags"] == '{"part": "7"}'))["step"].to_list() == list(
        steps
    )
    drawn = client.run("scores").metrics(points=10)
    assert [line.title for line in drawn] == [line.title for line in found]
    assert sum(drawn["score{part=103}"].values.count) == len(steps)
    with pytest.raises(KeyError, match="'score' is several of these"):
        found["score"]
    with pytest.raises(NotFoundError, match="scores has no metric 'los'; it has: =odd, name, lr0, score"):
        client.run("scores").metrics("los")


def test_metrics_of_one_title_stay_apart(module_collector, client):
    """Titles are not unique: tags have commas, and CSV has an apostrophe before a formula."""
    keys = [("x", (("a", "1, b=2"),)), ("x", (("a", "1"), ("b", "2"))), ("=x", ()), ("'=x", ())]
    logged = tuple(
        wire.Metric(name, tags, (value,), wire.column("d", [value])) for value, (name, tags) in enumerate(keys)
    )
    stream = streams.Stream(streams.healthy(1, 1))
    session = streams.Session(module_collector.url, run="titles")
    session.put_hello(stream.hello())
    session.post_batch(0, wire.dump(replace(stream.batch(0, 1), metrics=logged))).raise_for_status()
    for found in (client.run("titles").metrics(), client.run("titles").metrics(points=10)):
        values = {(line.name, tuple(sorted(line.tags.items()))): line.values.mean.tolist() for line in found}
        assert values == {key: [value] for value, key in enumerate(keys)}


def test_states_of_cells_stay_apart(run, absmax):
    heatmap = run.heatmap("absmax", columns=400, start=0, end=399)
    states, values = heatmap.states(), heatmap.to_numpy()
    assert [row.name for row in heatmap.rows] == list(NAMES)
    assert set(states[1, 100:110]) == {"no_gradient"}
    assert set(states[2, 200:205]) == {"nonfinite"}
    assert (states[3, 300], values[3, 300]) == ("zero", 0)
    assert (states == "measured").sum() == 4 * 400 - 16
    np.testing.assert_allclose(values[states == "measured"], absmax[:400].T[states == "measured"], rtol=1.2e-3)
    assert np.isnan(values[(states != "measured") & (states != "zero")]).all()
    assert heatmap.cell(1, 100)[0] == "no_gradient"
    assert heatmap.cell(0, 0) == ("measured", pytest.approx(absmax[0, 0], rel=1.2e-3))
    frame = heatmap.to_pandas()
    assert frame[frame["state"] == "zero"][["name", "step", "value"]].to_numpy().tolist() == [[NAMES[3], 300, 0.0]]
    assert heatmap.to_polars()["state"].to_list() == frame["state"].tolist()
    assert [row.name for row in run.heatmap(match="lora_B", columns=5).rows] == [NAMES[1], NAMES[3]]


def test_lists_come_whole(module_collector, client):
    names = [f"many-{number:03d}" for number in range(205)]
    for name in names:
        streams.Session(module_collector.url, run=name).put_hello(streams.hello(None)).raise_for_status()
    found = client.runs(text="many-")
    assert sorted(run.name for run in found) == names
    assert len(client.runs(text="many-", limit=3)) == 3
    assert len(client.runs(text="many-", limit=203)) == 203
    assert found.to_numpy()["name"].tolist() == [run.name for run in found]
    assert found.to_pandas()["name"].tolist() == found.to_polars()["name"].to_list() == [run.name for run in found]
    with pytest.raises(NotFoundError, match=r"no run 'mny-007' here\. The nearest: many-\d+, "):
        client.run("mny-007")


def test_an_incident_is_acknowledged_and_silenced(module_collector, client):
    values = streams.collapsed(400, 4, [0, 2], 200)
    streams.Session(module_collector.url, run="sick").send(streams.Stream(values, streams.falling_loss(400)))
    (incident,) = client.incidents("sick", rule="collapse", layer=NAMES[0])
    assert client.run("sick").incidents(state="open", sort="worst", limit=1) == client.incidents("sick", limit=1)
    assert (incident.severity, incident.state, incident.firing, incident.parameters) == ("critical", "open", 2, 4)
    assert (incident.acked, incident.members, incident.since_step) == (None, None, 200)
    assert incident.explanation.do_first
    assert incident.url.endswith(f"/runs/sick?incident={incident.id}")
    members = client.incident(incident.id).members
    assert [member.name for member in members] == [NAMES[0], NAMES[2]]
    assert client.incidents("sick", since=datetime.now(timezone.utc) + timedelta(hours=1)).items == ()
    assert client.ack(incident, "seen", by="ada").acked.by == "ada"
    assert client.ack(incident.id).acked.note == "seen"
    silence = client.silence("si*", match="lora_A", duration=timedelta(hours=8), note="night")
    assert silence in client.silences()
    assert incident.id in silence.incidents
    assert client.incident(incident.id).silenced_until == silence.until
    client.end_silence(silence)
    assert silence not in client.silences()
    frame = client.incidents("sick").to_pandas()
    assert frame["id"].tolist() == [each.id for each in client.incidents("sick")]
    with pytest.raises(NotFoundError, match="no incident 999 here"):
        client.ack(999)
    with pytest.raises(ValueError, match="give duration="):
        client.silence("sick")
    with pytest.raises(ValueError, match="has no time zone"):
        client.silence("sick", until=datetime(2030, 1, 1))  # noqa: DTZ001 -- the mistake


def test_results_are_short_in_a_notebook(client, run):
    assert repr(run.series()) == "Series(absmax of long, 4 parameters, 6,000 buckets of steps 0 to 5,999)"
    assert repr(run.series(layers=[])) == "Series(absmax of long, 0 parameters, 0 buckets)"
    assert repr(run.series()[0]) == f"Line({NAMES[0]}, 6,000 buckets of steps 0 to 5,999)"
    assert repr(run.heatmap(columns=100)) == "Heatmap(min absmax of long, 4 rows, 94 buckets of steps 0 to 6,015)"
    assert repr(run.metrics()) == "Metrics(long: loss, lr0)"
    head, first, *rows = repr(run.layers()).splitlines()
    assert head.split() == ["number", "name", "shape", "step", "state", "absmax", "norm"]
    assert first.split()[:2] == ["0", NAMES[0]]
    assert len(rows) == 3
    assert repr(client.runs(text="long")).startswith("name  state  step  loss  last_seen")
    assert repr(client.incidents(run="long", severity="critical")[:0]) == "no Incident"
    assert {error.__module__ for error in (AccessError, CollectorError, NotFoundError)} == {"gradcanary.client"}


def test_where_no_token_is_needed_the_user_is_the_author(module_collector):
    for token in (None, "gc_admin_of_another_collector"):
        silence = gradcanary.Client(module_collector.url, token).silence("x", duration=timedelta(hours=1))
        assert silence.by == getpass.getuser()


def test_errors_say_what_to_do(client, run, monkeypatch):
    with pytest.raises(UnreachableError, match=r"does not answer .*'gradcanary up'.* Client\(url=\) or GRADCANARY_URL"):
        gradcanary.Client("http://127.0.0.1:9").runs()
    monkeypatch.setenv("GRADCANARY_URL", "http://127.0.0.1:9")
    assert gradcanary.Client().url == "http://127.0.0.1:9"
    with pytest.raises(ValueError, match=r"Client\(url=\) is 'ftp://x'"):
        gradcanary.Client("ftp://x")
    with pytest.raises(NotFoundError, match=r"no run 'lonk' here\. The nearest: long"):
        client.run("lonk")
    with pytest.raises(NotFoundError, match=r"no run 'lonk' here\. The nearest: long\. Client\.runs\(\) lists all\."):
        client.incidents(run="lonk")
    with pytest.raises(NotFoundError, match=r"There is no run 'a/b' here"):
        client.run("a/b")
    with pytest.raises(NotFoundError, match=r"is 'lora_C', .*; the nearest: blocks"):
        run.series(layers="lora_C")
    with pytest.raises(NotFoundError, match="no parameter of this run is 9"):
        run.series(layers=[0, 9])
    with pytest.raises(ValueError, match="not a regular expression"):
        run.series(layers="lora_(")
    with pytest.raises(NotFoundError, match=r"^There is no /api/v1/rulez here\.$"):
        client.fetch(dict, "/rulez")
    for wrong, message in (
        (lambda: run.series("gradient"), r"^stat= should be 'absmax', 'norm'.*, not 'gradient'$"),
        (lambda: run.series(start=-5), "^start= should be greater than or equal to 0, not '-5'$"),
        (lambda: run.metrics(end=-5), "^end= should be greater than or equal to 0, not '-5'$"),
        (lambda: run.series(points=0), "^points= should be greater than or equal to 1, not '0'$"),
        (lambda: run.metrics(points=0), "^points= should be greater than or equal to 1, not '0'$"),
        (lambda: run.heatmap(value="minn"), "^value= should be 'min', 'mean' or 'max', not 'minn'$"),
        (lambda: run.heatmap(columns=100_000), "^columns= should be less than or equal to 5000, not '100000'$"),
        (lambda: client.incidents(state="closed"), "^state= should be 'open', 'resolved' or 'ended', not 'closed'$"),
        (lambda: client.silence("long", duration=timedelta(hours=1), rule="colapse"), "^rule= should be "),
    ):
        with pytest.raises(CollectorError, match=message):
            wrong()
    with pytest.raises(TypeError, match=r"duration=8 is not a timedelta: give timedelta\(hours=8\), for example"):
        client.silence("long", duration=8)


def test_a_token_is_asked_for(tmp_path):
    guarded = Collector(tmp_path, ("--auth",)).start()
    try:
        for token in (None, "gc_read_wrong"):
            with pytest.raises(
                AccessError,
                match=r"Give a token with Client\(token=\) or GRADCANARY_TOKEN\. .* --scope read .*--scope admin",
            ):
                gradcanary.Client(guarded.url, token).runs()
        admin = next(word for line in guarded.output for word in line.split() if word.startswith("gc_admin_"))
        client = gradcanary.Client(guarded.url, admin)
        assert not client.runs()
        author = client.silence("x", duration=timedelta(hours=1)).by
        assert author == next(each["name"] for each in client.fetch(lambda found: found["tokens"], "/tokens"))
        assert author != getpass.getuser()
        assert client.silence("x", duration=timedelta(hours=1), by="ada").by == "ada"
    finally:
        guarded.kill()


class Proxy(BaseHTTPRequestHandler):
    """Passes the answers of a collector on, and one for points that is not what it should be."""

    collector, points = "", (b"", 0)

    def do_GET(self):
        body, size = self.points
        if "/points" not in self.path:
            body = httpx.get(f"{self.collector}{self.path}").content
            size = len(body)
        self.send_response(200)
        self.send_header("content-length", str(size))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("points", "error", "reason"),
    [
        ((b"", 0), CollectorError, "was cut off"),
        ((b"{", 100), CollectorError, "was cut off"),
        ((b"step,time,loss\n", 15), VersionError, r"not understood \(JSONDecodeError.*, as here\."),
        ((b'{"columns": []}\n', 16), VersionError, r"not understood \(KeyError"),
    ],
)
def test_metrics_that_do_not_arrive_are_an_error(module_collector, run, monkeypatch, points, error, reason):
    monkeypatch.setattr(Proxy, "collector", module_collector.url)
    monkeypatch.setattr(Proxy, "points", points)
    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = gradcanary.Client(f"http://127.0.0.1:{server.server_port}").run("long")
        with pytest.raises(CollectorError, match=reason) as caught:
            found.metrics("loss")
        server.shutdown()
    assert type(caught.value) is error


class Older(BaseHTTPRequestHandler):
    """A collector of another version: it has no route for silences, and its runs lack most keys."""

    def do_GET(self):
        bodies = {
            "/api/v1/openapi.json": (200, {"info": {"version": "0.0.1"}}),
            "/api/v1/runs/old": (200, {"run": "old"}),
        }
        gone = (404, {"error": {"code": "not_found", "message": f"There is no {self.path} here.", "field": None}})
        status, body = bodies.get(self.path, gone)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


def test_another_version_is_named():
    with HTTPServer(("127.0.0.1", 0), Older) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = gradcanary.Client(f"http://127.0.0.1:{server.server_port}")
        versions = rf"gradcanary 0\.0\.1, here is {re.escape(gradcanary.__version__)}: install the same version"
        with pytest.raises(VersionError, match=rf"An answer is not understood \(KeyError: 'loss'\)\. .*{versions}"):
            client.run("old")
        with pytest.raises(VersionError, match=rf"no /api/v1/silences here\. .*{versions}"):
            client.silences()
        server.shutdown()


ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
import gradcanary
client = gradcanary.Client()
run = client.run("long")
series = run.series("absmax", layers=0)
print(len(client.runs()) > 0, len(series.buckets.steps), sum(line.values.count[0] for line in series))
print(run.metrics("loss")["loss"].values.mean[0], run.heatmap(columns=10).cell(0, 0)[0], len(client.incidents()) >= 0)
print(sorted({"numpy", "pandas", "polars", "torch"} & set(sys.modules)))
runs = client.runs()
for make in (series.to_numpy, series.to_pandas, runs.to_pandas, runs.to_polars, run.heatmap().to_numpy):
    try:
        make()
    except ImportError as error:
        print(error)
"""


def test_it_needs_the_standard_library_only(run, module_collector):
    command = [sys.executable, "-I", "-S", "-c", ALONE, str(AGENT)]
    environment = {**os.environ, "GRADCANARY_URL": module_collector.url}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == [
        f"True {STEPS} 1",
        "1.0 measured True",
        "[]",
        *(
            f"this needs {package}, which gradcanary does not bring: pip install {package}"
            for package in ("numpy", "numpy", "pandas", "polars", "numpy")
        ),
    ]
