"""An incident of series of a metric: silenced by their names, grown, recovered; and bounds that are refused."""

from dataclasses import replace

import pytest

from gradcanary import wire
from support.collectors import Collector
from support.streams import Session, Stream, healthy

BOUND = wire.MetricBound("clip_score", below=0.2, observations=2)
STREAM = Stream(healthy(64, 4))


def post(session: Session, seq: int, **scores: float) -> None:
    """Post eight samples, with a score of each category at the last of them."""
    batch = STREAM.batch(8 * seq, 8 * seq + 8)
    metrics = tuple(
        wire.Metric("clip_score", (("category", category),), (batch.steps[-1],), wire.column("d", [score]))
        for category, score in scores.items()
    )
    session.post_batch(seq, replace(batch, metrics=metrics)).raise_for_status()


def test_series_are_silenced_by_name_grow_and_recover(module_collector: Collector) -> None:
    session = Session(module_collector.url, run="tagged")
    session.put_hello(STREAM.hello(metrics=(BOUND,))).raise_for_status()
    scores = [(0.1, 0.3), (0.1, 0.3), (0.1, 0.1), (0.1, float("nan")), (0.3, 0.1), (0.3, 0.3), (0.3, 0.3)]
    counts = []
    for seq, (bottles, cars) in enumerate(scores):
        post(session, seq, bottles=bottles, cars=cars)
        if seq == 1:
            hidden = {
                match: module_collector.get(
                    "/api/v1/silences/preview", run="tagged", rule="metric", match=match
                ).json()["incidents"]
                for match in ("category=bottles", "category=cars")
            }
            assert [bool(hidden[match]) for match in hidden] == [True, False]
        found = module_collector.get("/api/v1/incidents", run="tagged").json()["incidents"]
        counts.append([(each["state"], each["counts"]["firing"], each["counts"]["ever"]) for each in found])
    assert counts == [
        [],
        [("open", 1, 1)],
        [("open", 1, 1)],
        [("open", 2, 2)],
        [("open", 2, 2)],
        [("open", 1, 2)],
        [("resolved", 0, 2)],
    ]
    shown = module_collector.get(f"/api/v1/incidents/{found[0]['id']}").json()
    assert [(each["name"], each["since_step"], each["until_step"], each["evidence"]) for each in shown["layers"]] == [
        ("clip_score{category=cars}", 23, 55, "not_finite"),
        ("clip_score{category=bottles}", 7, 47, "under_bound"),
    ]
    assert shown["resolution"] == "recovered"


@pytest.mark.parametrize(
    "bound",
    [
        wire.MetricBound("fid"),
        wire.MetricBound("", below=1.0),
        wire.MetricBound("fid", falls_by=2.0),
        wire.MetricBound("fid", below=1.0, above=0.5),
        wire.MetricBound("fid", below=1.0, observations=0),
        wire.MetricBound("fid", below=1.0, severity="information"),
    ],
)
def test_a_bound_that_is_none_is_refused(module_collector: Collector, bound: wire.MetricBound) -> None:
    answer = Session(module_collector.url, run="refused").put_hello(STREAM.hello(metrics=(bound,)))
    assert answer.status_code == 422
    assert answer.json()["error"]["field"].startswith("metrics.0")
