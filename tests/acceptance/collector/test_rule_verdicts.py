"""What the rules say of healthy, small, rescaled and collapsed runs, over HTTP; a restart changes none of it."""

import numpy as np
import pytest

from support import streams
from support.dialects import one_store

STEPS, LAYERS = 320, 20


def lora_start() -> streams.Stream:
    """lora_A has no gradient while lora_B is zero, and grows into one."""
    absmax = streams.healthy(STEPS, LAYERS)
    absmax[:, ::2] *= np.minimum(np.arange(STEPS) / 60, 1)[:, None].astype(np.float32)
    return streams.Stream(absmax, streams.falling_loss(STEPS))


def small_from_the_start() -> streams.Stream:
    return streams.Stream(streams.healthy(STEPS, LAYERS, level=1e-6), streams.falling_loss(STEPS))


def rescaled_loss() -> streams.Stream:
    absmax, loss = streams.healthy(STEPS, LAYERS), streams.falling_loss(STEPS)
    absmax[200:] *= np.float32(1e-3)
    loss[200:] *= 1e-3
    return streams.Stream(absmax, loss)


def loss_times_zero() -> streams.Stream:
    absmax = streams.healthy(STEPS, LAYERS)
    absmax[200:] = 0
    return streams.Stream(absmax, np.full(STEPS, 2.0))


def two_of_three() -> streams.Stream:
    return streams.Stream(streams.collapsed(STEPS, 3, (0, 1), 200), streams.falling_loss(STEPS))


def collapse() -> streams.Stream:
    return streams.Stream(streams.collapsed(STEPS, LAYERS, (4, 6), 200), streams.falling_loss(STEPS))


def suspect() -> streams.Stream:
    """Low for less than it takes to fire when the stream ends."""
    return streams.Stream(streams.collapsed(STEPS, LAYERS, (4,), STEPS - 12), streams.falling_loss(STEPS))


CASES = {
    make.__name__: make
    for make in (lora_start, small_from_the_start, rescaled_loss, loss_times_zero, two_of_three, collapse, suspect)
}


def told(collector, run):
    """All that the API says of a run's health."""
    summary = collector.get(f"/api/v1/runs/{run}").json()
    layers = collector.get(f"/api/v1/runs/{run}/layers").json()["layers"]
    listed = collector.get("/api/v1/incidents", run=run).json()["incidents"]
    incidents = [collector.get(f"/api/v1/incidents/{each['id']}").json() for each in listed]
    health = {
        key: summary[key]
        for key in ("step", "firing", "below_threshold", "worst", "open_incidents", "headline", "sparkline")
    }
    return health, layers, incidents


@pytest.fixture(scope="module")
def told_twice(tmp_path_factory, new_db):
    """What a collector says of each case before and after it was restarted."""
    from support.collectors import Collector

    collector = Collector(tmp_path_factory.mktemp("collector"), db=new_db()).start()
    for name, make in CASES.items():
        streams.Session(collector.url, run=name, session=name).send(make(), size=40)
    before = {name: told(collector, name) for name in CASES}
    collector.stop()
    collector.start()
    yield before, {name: told(collector, name) for name in CASES}
    collector.kill()


@one_store
@pytest.mark.parametrize(
    ("name", "rules", "low", "worst"),
    [
        ("lora_start", {}, 0, None),
        ("small_from_the_start", {}, LAYERS, None),
        ("rescaled_loss", {"scale_drop": 0}, LAYERS, "information"),
        ("loss_times_zero", {"scale_drop": 0}, LAYERS, "critical"),
        ("two_of_three", {"collapse": 2}, 0, "critical"),
        ("collapse", {"collapse": 2}, 0, "critical"),
        ("suspect", {}, 1, None),
    ],
)
def test_rule_verdicts_of_runs(told_twice, name, rules, low, worst):
    health, layers, incidents = told_twice[0][name]
    assert (health["firing"], health["below_threshold"], health["worst"]) == (rules, low, worst)
    assert len(incidents) == len(rules)
    firing = {layer["layer"] for layer in layers if layer["rules"].get("collapse") == "firing"}
    assert len(firing) == rules.get("collapse", 0)


@one_store
def test_a_restart_changes_nothing(told_twice):
    before, after = told_twice
    assert before == after


@one_store
def test_a_suspect_layer_is_one_after_the_restart(told_twice):
    _, layers, _ = told_twice[1]["suspect"]
    assert [layer["layer"] for layer in layers if layer["rules"].get("collapse") == "suspect"] == [4]


@one_store
def test_all_gradients_at_zero_are_told_as_that(told_twice):
    _, _, (incident,) = told_twice[0]["loss_times_zero"]
    assert "All gradients became exactly zero at step 200" in incident["summary"]
