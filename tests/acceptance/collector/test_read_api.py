"""What pages read: the shapes of the final JSON, the numbers in it, and 304 while nothing changes."""

import base64
import csv
import io
import math
import re
import zlib
from dataclasses import replace

import httpx
import numpy as np
import pytest

from gradcanary import wire
from support import streams

RUN = {
    "run", "state", "created", "host", "step", "last_step_at", "last_seen", "loss", "layers", "firing",
    "below_threshold", "worst", "worst_incident", "unacked", "accumulators", "open_incidents",
    "headline", "severity_at_end", "note", "tags", "archived", "sparkline", "threshold",
}  # fmt: skip
DETAIL = {
    "aliases",
    "revision",
    "framework",
    "rules_version",
    "launches",
    "sessions",
    "gaps",
    "facts",
    "metrics",
}
LAYER = {
    "layer", "name", "block", "shape", "param_dtype", "accumulator", "micro_steps", "step", "state", "absmax", "norm",
    "zero_fraction", "nonfinite", "update_ratio", "accumulation_error", "norm_ratio", "frozen_fraction", "rules",
    "below_threshold", "baseline",
}  # fmt: skip
ENVELOPE = {"min", "mean", "max", "count", "nonfinite"}


def decode(array):
    values = np.frombuffer(base64.b64decode(array["data"]), np.dtype(array["dtype"]).newbyteorder("<"))
    return values.reshape(array["shape"])


@pytest.fixture
def session(module_collector, request):
    return streams.Session(module_collector.url, run=f"run-{zlib.crc32(request.node.name.encode())}")


@pytest.fixture
def read(session):
    def get(path, **params):
        answer = httpx.get(f"{session.url}/api/v1/runs/{session.run}{path}", params=params, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return get


def listed(session):
    runs = httpx.get(f"{session.url}/api/v1/runs").json()["runs"]
    return next(run for run in runs if run["run"] == session.run)


def test_a_run_that_only_said_hello(session, read):
    assert session.put_hello(streams.hello(None, first_step=None, step_source=None)).status_code == 200
    row = listed(session)
    assert set(row) == RUN
    assert (row["state"], row["step"], row["layers"], row["firing"], row["worst"]) == ("live", None, 0, {}, None)
    assert row["last_step_at"] is None
    assert (row["loss"], row["host"], row["worst_incident"], row["unacked"]) == (None, None, None, [])
    assert np.isnan(decode(row["sparkline"])).all()
    assert set(read("")) == RUN | DETAIL
    assert read("/layers") == {"revision": 1, "layers": []}
    assert decode(read("/heatmap")["cells"]).shape == (0, 0)
    assert read("/metrics")["metrics"] == []


def test_the_run_and_its_list_entry(session, read):
    stream = streams.Stream(streams.healthy(100, 6), loss=streams.falling_loss(100), stored="bfloat16")
    session.send(stream, size=30)
    row, detail = listed(session), read("")
    assert set(detail) == RUN | DETAIL
    assert {key: detail[key] for key in RUN} == row
    assert (row["step"], row["layers"], row["accumulators"]) == (99, 6, {"bfloat16": 6})
    assert row["loss"] == {"name": "loss", "tags": {}, "last": pytest.approx(stream.loss[-1], rel=1e-6)}
    for when in (row["created"], row["last_seen"], row["last_step_at"]):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", when)
    spark = decode(row["sparkline"])
    assert (spark.shape, spark.dtype) == ((64,), np.float32)
    np.testing.assert_allclose(np.nanmin(spark), np.log10(stream.absmax.min()), rtol=1e-5)
    assert detail["sessions"] == [
        {
            "session": "session-1",
            "launch": "launch-1",
            "rank": 0,
            "world_size": 1,
            "first_step": 0,
            "last_step": 99,
            "step_source": "given",
            "state": "live",
            "every": 1,
            "phase": "accumulated",
            "agent_share": None,
            "dropped_steps": 0,
        }
    ]
    assert detail["framework"] == "peft"
    assert detail["gaps"] == []
    assert detail["metrics"] == [
        {"name": "loss", "tags": {}, "last": pytest.approx(0.2)},
        {"name": "lr0", "tags": {}, "last": 1e-3},
    ]


def test_configuration_of_each_launch_is_kept(session, read):
    """A repeat of the hello has more settings, and a rank or an older agent none."""
    stream = streams.Stream(streams.healthy(20, 4))
    environment = wire.Environment(
        *("python a.py", "0" * 40, True, "node", ("H100",), (("torch", "2"),), (("J", "1"),)),
        trackers=(wire.TrackerRun("wandb", "team/toy/1", "toy", "https://wandb.ai/team/toy/runs/1", None),),
    )
    first = (wire.Setting(0, None, (0, 1), "weight_decay", 0.1), wire.Setting(0, None, (0,), "amsgrad", True))
    change = wire.Setting(12, 11, (1,), "weight_decay", 1e5)
    session.put_hello(stream.hello(settings=first))
    session.put_hello(stream.hello(settings=(*first, change), environment=environment))
    session.put_hello(stream.hello())
    second = replace(session, session="second")
    second.put_hello(stream.hello(launch="launch-2"))
    one, two = read("")["launches"]
    assert (one["launch"], two["launch"], two["environment"], two["settings"]) == ("launch-1", "launch-2", None, [])
    assert one["environment"] == {
        "command": "python a.py",
        "git_commit": "0" * 40,
        "git_dirty": True,
        "host": "node",
        "gpus": ["H100"],
        "versions": {"torch": "2"},
        "job": {"J": "1"},
        "trackers": [
            {
                "tracker": "wandb",
                "id": "team/toy/1",
                "name": "toy",
                "url": "https://wandb.ai/team/toy/runs/1",
                "store": None,
            }
        ],
    }
    assert [each["value"] for each in one["settings"]] == [0.1, True, 1e5]
    assert one["settings"][2] == {"step": 12, "checked": 11, "groups": [1], "name": "weight_decay", "value": 1e5}


def test_layers_tell_their_last_values(session, read):
    absmax = streams.healthy(70, 4)
    absmax[-1] = [np.nan, 0, np.inf, 5e-4]
    session.send(streams.Stream(absmax), size=16)
    layers = read("/layers")["layers"]
    assert all(set(layer) == LAYER for layer in layers)
    assert [layer["state"] for layer in layers] == ["no_gradient", "zero", "nonfinite", "measured"]
    assert [layer["absmax"] for layer in layers] == [None, 0, None, pytest.approx(5e-4)]
    assert [layer["nonfinite"] for layer in layers] == [0, 0, 1, 0]
    last = layers[3]
    assert (last["layer"], last["name"], last["block"]) == (3, "blocks.1.attn.lora_B.weight", "blocks.1")
    assert (last["step"], last["micro_steps"], last["shape"], last["param_dtype"]) == (69, 8, [8, 64], "float32")
    assert last["accumulator"] == {"declared": None, "stored": "float32", "effective": None}


def test_series_by_number_and_by_name(session, read):
    absmax = streams.healthy(64, 4)
    session.send(streams.Stream(absmax), size=20)
    found = read("/series", layer=["2", "blocks.0.attn.lora_B.weight"], points=1000)
    assert [line["layer"] for line in found["series"]] == [2, 1]
    assert found["bucket_steps"] == 1
    assert found["phases"] == ["accumulated"]
    np.testing.assert_array_equal(decode(found["steps"]), np.arange(64))
    np.testing.assert_allclose(decode(found["times"]), 1.7e9 + 0.1 * np.arange(64))
    for line in found["series"]:
        assert set(line) > ENVELOPE
        for part in ("min", "mean", "max"):
            np.testing.assert_array_equal(decode(line[part]), absmax[:, line["layer"]])
    assert set(found["threshold"]) == {"enter", "exit"}
    narrowed = read("/series", layer="2", **{"from": 10, "to": 30}, points=4)
    assert decode(narrowed["series"][0]["count"]).sum() == 21
    assert narrowed["bucket_steps"] == 8


def test_layer_holds_the_series_of_each_of_its_stats(session, read):
    absmax = streams.healthy(64, 4)
    absmax[20:, 2] = np.nan
    session.send(streams.Stream(absmax), size=20)
    for span in ({}, {"points": 4}, {"from": 10, "to": 30}, {"from": 40}):
        found = read("/layers/blocks.1.attn.lora_A.weight", **span)
        assert (found["layer"], found["name"]) == (2, "blocks.1.attn.lora_A.weight")
        assert [line["stat"] for line in found["series"]] == ["absmax", "norm", "nonfinite"]
        assert found == read("/layers/2", **span)
        for line in found["series"]:
            alone = read("/series", layer=2, stat=line["stat"], **span)
            for key in ("bucket_steps", "steps", "times", "threshold", "marks", "revision"):
                assert found[key] == alone[key]
            [series] = alone["series"]
            assert line == {
                "stat": line["stat"],
                "phases": alone["phases"],
                **{name: series[name] for name in ENVELOPE},
            }
    assert set(found) == {
        *("run", "layer", "name", "revision", "bucket_steps", "spans", "steps", "times", "series", "threshold", "marks")
    }


def test_layer_without_a_value_has_absmax_alone(session, read):
    session.send(streams.Stream(np.full((5, 2), np.nan, np.float32)))
    for span in ({}, {"from": 2}):
        found = read("/layers/0", **span)
        assert found["series"][0]["stat"] == "absmax"
        assert decode(found["series"][0]["count"]).sum() == 0


def test_layer_name_may_hold_slashes(session, read):
    session.send(streams.Stream(streams.healthy(3, 2), names=("enc/0/w", "layers/1")))
    assert read("/layers/enc%2F0%2Fw")["layer"] == 0
    assert read("/layers/layers/1")["layer"] == 1


def test_the_heatmap_in_milli_decades_and_words(session, read):
    absmax = np.full((4, 3), 1e-3, np.float32)
    absmax[1] = [0, np.inf, np.nan]
    absmax[2] = [1e-40, 1e38, 2.0]
    session.send(streams.Stream(absmax))
    found = read("/heatmap")
    cells = decode(found["cells"])
    assert cells.dtype == np.int16
    assert cells.tolist() == [
        [-3000, -32767, -32760, -3000],
        [-3000, 32767, 32760, -3000],
        [-3000, -32766, 301, -3000],
    ]
    assert [row["layers"] for row in found["rows"]] == [[0], [1], [2]]
    coarse = read("/heatmap", columns=1, value="max")
    assert decode(coarse["cells"])[:, 0].tolist() == [-3000, 32767, 301]
    mean = decode(read("/heatmap", columns=1, value="mean")["cells"])[2, 0]
    assert mean == round(1000 * math.log10((1e-3 * 2 + 2.0) / 3))


def test_rows_are_matched_ordered_and_shared(session, read):
    absmax = streams.healthy(10, 8)
    absmax[-1, 5] = 1e-9
    session.send(streams.Stream(absmax))
    assert read("/heatmap", order="worst")["rows"][0]["layers"] == [5]
    matched = read("/heatmap", match=r"lora_A\.weight$")
    assert [row["layers"] for row in matched["rows"]] == [[0], [2], [4], [6]]
    shared = read("/heatmap", rows=3)
    assert [row["layers"] for row in shared["rows"]] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert decode(shared["cells"])[1, -1] == -9000  # the one that fell is not lost among its neighbours
    assert [row["block"] for row in read("/heatmap", order="block")["rows"]][:4] == ["blocks.0"] * 2 + ["blocks.1"] * 2


@pytest.mark.parametrize(
    ("path", "params", "status", "field"),
    [
        ("/heatmap", {"match": "("}, 422, "match"),
        ("/heatmap", {"match": "(?=x)"}, 422, "match"),
        ("/heatmap", {"stat": "median"}, 422, "stat"),
        ("/heatmap", {"order": "random"}, 422, "order"),
        ("/heatmap", {"columns": 0}, 422, "columns"),
        ("/heatmap", {"columns": 5000, "rows": 20000}, 422, "rows"),
        ("/series", {}, 422, "layer"),
        ("/series", {"layer": 99}, 404, "layer"),
        ("/series", {"layer": 0, "from": -1}, 422, "from"),
        ("/layers/99", {}, 404, "layer"),
        ("/layers/0", {"to": -1}, 422, "to"),
        ("/metrics", {"points": 10**9}, 422, "points"),
    ],
)
def test_questions_that_cannot_be_answered(session, path, params, status, field):
    session.send(streams.Stream(streams.healthy(3, 2)))
    answer = httpx.get(f"{session.url}/api/v1/runs/{session.run}{path}", params=params)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["field"] == field


@pytest.mark.parametrize(
    "path", ["", "/layers", "/layers/1", "/series?layer=1", "/heatmap", "/metrics", "/export.csv", "/metrics.csv"]
)
def test_an_unknown_run_is_404_and_says_so(session, path):
    answer = httpx.get(f"{session.url}/api/v1/runs/nobody{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_run"


@pytest.mark.parametrize("name", ["a%00b", "%F0%9F%90%A4", "a" * 5000])
def test_invalid_run_names_are_unknown(session, name):
    for path in (f"runs/{name}", f"incidents?run={name}"):
        answer = httpx.get(f"{session.url}/api/v1/{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_run")


def test_series_are_in_the_order_of_their_bytes(session, read):
    stream = streams.Stream(streams.healthy(3, 2))
    session.put_hello(stream.hello()).raise_for_status()
    steps = (0, 1, 2)
    names = ["b", "a", "B", "_", "a.b", "é", "ab", "\U0001f424"]
    tags = [(("k", value),) for value in ("b", "B", "a")]
    logged = [streams.wire.Metric(name, (), steps, streams.wire.column("d", [1.0] * 3)) for name in names]
    logged += [streams.wire.Metric("a", tag, steps, streams.wire.column("d", [1.0] * 3)) for tag in tags]
    batch = streams.replace(stream.batch(0, 3), metrics=tuple(logged))
    session.post_batch(0, batch).raise_for_status()
    listed = [(metric["name"], str(metric["tags"])) for metric in read("")["metrics"]]
    assert listed == sorted(listed, key=lambda each: (each[0].encode(), each[1].encode()))
    assert len(listed) == len(logged)


def test_metrics_by_name_with_tags_and_what_is_not_finite(session, read):
    loss = np.array([3.0, 2.0, np.nan, np.inf, 1.0])
    session.send(streams.Stream(streams.healthy(5, 2), loss=loss))
    found = read("/metrics", name="loss")
    (line,) = found["metrics"]
    assert (line["name"], line["tags"]) == ("loss", {})
    assert decode(line["count"]).tolist() == [1, 1, 0, 0, 1]
    assert decode(line["nonfinite"]).tolist() == [0, 0, 1, 1, 0]
    assert decode(line["min"])[[0, 1, 4]].tolist() == [3.0, 2.0, 1.0]
    assert {metric["name"] for metric in read("/metrics")["metrics"]} == {"loss", "lr0"}


def test_a_later_launch_wins_per_step_and_the_older_stays_visible(session, read):
    old, new = streams.healthy(30, 2), streams.healthy(10, 2, seed=1)
    session.send(streams.Stream(old))
    resumed = streams.Session(session.url, session.run, "session-2")
    resumed.send(streams.Stream(new, first_step=10), launch="launch-2")
    line = read("/series", layer=0)["series"][0]
    np.testing.assert_array_equal(decode(line["min"]), np.r_[old[:10, 0], new[:, 0], old[20:, 0]])
    assert listed(session)["step"] == 19
    assert [each["state"] for each in read("")["sessions"]] == ["silent", "live"]


def test_gaps_say_who_knew(session, read):
    stream = streams.Stream(streams.healthy(100, 2))
    session.put_hello(stream.hello()).raise_for_status()
    session.post_batch(0, stream.batch(0, 10)).raise_for_status()
    session.post_batch(1, stream.batch(20, 30)).raise_for_status()
    dropped = streams.replace(stream.batch(50, 60), dropped_steps=20)
    session.post_batch(2, dropped).raise_for_status()
    gaps = [
        {"session": "session-1", "from_step": 10, "to_step": 19, "reason": "missing"},
        {"session": "session-1", "from_step": 30, "to_step": 49, "reason": "dropped"},
    ]
    assert read("")["gaps"] == read("/heatmap")["gaps"] == gaps
    assert read("")["sessions"][0]["dropped_steps"] == 20
    assert decode(read("/heatmap")["cells"])[0, 10:20].tolist() == [-32768] * 10


def test_thinned_steps_are_one_gap(session, read):
    stream = streams.Stream(streams.healthy(100, 2))
    session.put_hello(stream.hello()).raise_for_status()
    whole = stream.batch(0, 10), stream.batch(60, 70), stream.batch(71, 80)
    coarse = streams.Stream(streams.healthy(5, 2), first_step=10, every=10)
    # Of 10 to 59 every tenth step stays; 70 is lost like any other.
    told = (0, whole[0]), (27, coarse.batch(0, 4)), (36, coarse.batch(4, 5)), (45, whole[1]), (46, whole[2])
    for seq, (dropped, batch) in enumerate(told):
        session.post_batch(seq, streams.replace(batch, dropped_steps=dropped)).raise_for_status()
    assert [(gap["from_step"], gap["to_step"], gap["reason"]) for gap in read("")["gaps"]] == [
        (11, 59, "dropped"),
        (70, 70, "dropped"),
    ]


def test_nothing_new_is_304_and_anything_new_is_not(session):
    stream = streams.Stream(streams.healthy(20, 2))
    session.put_hello(stream.hello()).raise_for_status()
    session.post_batch(0, stream.batch(0, 10)).raise_for_status()
    urls = [f"{session.url}/api/v1/runs"]
    paths = ("", "/layers", "/layers/0", "/series?layer=0", "/heatmap", "/metrics")
    urls += [f"{urls[0]}/{session.run}{path}" for path in paths]
    tags = {url: httpx.get(url).headers["etag"] for url in urls}
    assert len(set(tags.values())) == len(urls)
    for url, tag in tags.items():
        unchanged = httpx.get(url, headers={"If-None-Match": tag})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
        assert unchanged.headers["etag"] == tag
    session.post_batch(1, stream.batch(10, 20)).raise_for_status()
    for url, tag in tags.items():
        assert httpx.get(url, headers={"If-None-Match": tag}).status_code == 200


def test_csv_holds_every_sample_and_no_formula(session):
    absmax = streams.healthy(5, 3)
    absmax[2, 1] = np.nan
    session.send(streams.Stream(absmax, names=("=HYPERLINK(1)", "b,c", "d")), size=2)
    answer = httpx.get(f"{session.url}/api/v1/runs/{session.run}/export.csv", params={"match": "[^d]$"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows[0] == ["step", "time", "'=HYPERLINK(1)", "b,c"]
    assert [row[0] for row in rows[1:]] == ["0", "1", "2", "3", "4"]
    assert rows[3][3] == ""
    assert np.float32(rows[1][2]) == absmax[0, 0]


def test_named_tags_of_a_metric_are_answered(session, read):
    batch = streams.Stream(streams.healthy(4, 1), np.ones(4)).batch(0, 4)
    hosts = [
        wire.Metric("load", (("host", f"n{host}"), ("gpu", "0")), (0,), wire.column("d", [host])) for host in range(120)
    ]
    session.put_hello(streams.Stream(streams.healthy(4, 1)).hello()).raise_for_status()
    session.post_batch(0, replace(batch, metrics=(*batch.metrics, *hosts))).raise_for_status()
    named = ['{"host": "n7", "gpu": "0"}', '{"gpu":"0","host":"n112"}', '{"host": "n7"}']
    found = read("/metrics", name="load", tags=named)["metrics"]
    assert {(metric["tags"]["host"], decode(metric["mean"])[0]) for metric in found} == {("n7", 7), ("n112", 112)}
    assert [metric["name"] for metric in read("/metrics", tags="{}")["metrics"]] == ["loss", "lr0"]
    url = f"{session.url}/api/v1/runs/{session.run}/metrics"
    for query in ({"name": "load"}, {"tags": "host=n7"}, {"tags": '{"host": 7}'}):
        assert httpx.get(url, params=query).status_code == 422, query


def test_csv_of_some_steps_holds_those_and_says_so_in_its_name(session):
    absmax = streams.healthy(40, 2)
    session.put_hello(streams.Stream(absmax).hello()).raise_for_status()
    for seq, batch in enumerate(streams.Stream(absmax).batches(10)):
        session.post_batch(seq, batch).raise_for_status()
    again = streams.Session(session.url, session.run, "session-2")
    resumed = streams.Stream(streams.healthy(10, 2, seed=9), first_step=20)
    again.put_hello(resumed.hello(launch="launch-2")).raise_for_status()
    again.post_batch(0, resumed.batch(0, 10)).raise_for_status()
    url = f"{session.url}/api/v1/runs/{session.run}/export.csv"
    every = httpx.get(url).text.splitlines()
    answer = httpx.get(url, params={"from": 13, "to": 32})
    assert 'filename="' + session.run + '-absmax-13-32.csv"' in answer.headers["content-disposition"]
    rows = answer.text.splitlines()
    assert [int(row.split(",")[0]) for row in rows[1:]] == list(range(13, 33))
    assert rows == [every[0], *every[14:34]]
    assert np.float32(rows[8].split(",")[2]) == resumed.absmax[0, 0]
    assert httpx.get(url, params={"from": 38}).text.splitlines() == [every[0], *every[39:]]
    assert httpx.get(url, params={"from": -1}).status_code == 422


def test_csv_of_some_layers_may_hold_several_stats(session):
    absmax = streams.healthy(6, 4)
    session.send(streams.Stream(absmax, names=("a", "b", "=c", "2")))
    url = f"{session.url}/api/v1/runs/{session.run}/export.csv"
    query = {"layer": ["=c", "0"], "stat": ["absmax", "norm", "absmax"], "from": 2, "to": 3}
    heads, *rows = csv.reader(io.StringIO(httpx.get(url, params=query).text))
    assert heads == ["step", "time", "absmax =c", "norm =c", "absmax a", "norm a"]
    assert [row[0] for row in rows] == ["2", "3"]
    assert (
        np.float32(rows[0][2:]) == np.float32([absmax[2, 2], absmax[2, 2] * 3, absmax[2, 0], absmax[2, 0] * 3])
    ).all()
    assert (
        httpx.get(url, params={"stat": "weight_norm"}).text
        == "step,time,weight_norm a,weight_norm b,weight_norm =c,weight_norm 2\n"
    )
    for wrong, status in (({"stat": "nonsense"}, 422), ({"layer": "d"}, 404), ({"layer": "1", "match": "("}, 422)):
        answer = httpx.get(url, params=wrong)
        assert answer.status_code == status
        if "stat" in wrong:
            assert answer.json()["error"]["field"] == "stat"
            assert answer.json()["error"]["message"].endswith(", not 'nonsense'")


def test_csv_of_metrics_holds_every_point(session, read):
    """Of sealed tiles and of what is in the log alike, of two launches, with names as hostile as they may be."""
    loss = 0.1 + 1 / np.arange(1, 5_001)
    stream = streams.Stream(np.ones((5_000, 1), np.float32), loss, every=1)
    session.put_hello(stream.hello()).raise_for_status()
    scores = [
        wire.Metric("=score", (("by", "b,c"), ("at", "1")), (3, 10**9), wire.column("d", [0.1, math.inf])),
        wire.Metric("=score", (), (3,), wire.column("d", [7.0])),
    ]
    for seq, begin in enumerate(range(0, 5_000, 1_000)):
        batch = stream.batch(begin, begin + 1_000)
        more = [each for each in scores if begin == 4_000 and max(each.steps) >= begin]
        session.post_batch(seq, replace(batch, metrics=(*batch.metrics, *more))).raise_for_status()
    again = streams.Session(session.url, session.run, "session-2")
    resumed = streams.Stream(streams.healthy(10, 1), np.full(10, 0.25), first_step=20)
    again.put_hello(resumed.hello(launch="launch-2")).raise_for_status()
    last = resumed.batch(0, 10)
    again.post_batch(0, replace(last, metrics=(*last.metrics, scores[1]))).raise_for_status()
    loss[20:30] = 0.25
    url = f"{session.url}/api/v1/runs/{session.run}/metrics.csv"
    heads, *rows = csv.reader(io.StringIO(httpx.get(url).text))
    assert heads == ["step", "time", "'=score{at=1, by=b,c}", "'=score", "loss", "lr0"]
    assert [int(row[0]) for row in rows] == [*range(5_000), 10**9]
    assert [float(row[4]) for row in rows[:-1]] == loss.tolist()
    assert rows[0][1] == "2023-11-14T22:13:20.000Z"
    assert [(row[0], row[2], row[3]) for row in rows if row[2] or row[3]] == [
        ("3", "0.1", "7.0"),
        (str(10**9), "inf", ""),
    ]
    some = httpx.get(url, params={"name": "loss", "tags": "{}", "from": 4_090, "to": 4_100})
    assert 'filename="' + session.run + '-metrics-4090-4100.csv"' in some.headers["content-disposition"]
    assert [row.split(",")[0] for row in some.text.splitlines()] == ["step", *map(str, range(4_090, 4_101))]
    assert httpx.get(url, params={"name": "none"}).text == "step,time\n"
    assert httpx.get(url, params={"tags": "nonsense"}).status_code == 422


def test_csv_is_in_the_order_of_steps_where_an_agent_thinned_what_waited(session):
    fine, coarse = (
        streams.Stream(streams.healthy(100, 2)),
        streams.Stream(streams.healthy(3, 2), first_step=10, every=10),
    )
    session.put_hello(fine.hello()).raise_for_status()
    for seq, batch in enumerate((fine.batch(0, 10), coarse.batch(0, 3), fine.batch(40, 43))):
        session.post_batch(seq, batch).raise_for_status()
    rows = httpx.get(f"{session.url}/api/v1/runs/{session.run}/export.csv").text.splitlines()
    assert [int(row.split(",")[0]) for row in rows[1:]] == [*range(10), 10, 20, 30, 40, 41, 42]


def test_the_rules_can_be_read(module_collector):
    rules = module_collector.get("/api/v1/rules").json()
    assert rules["collapse"]["enter"] == 1e-4
    assert rules["pace"]["interval_s"] == 900
