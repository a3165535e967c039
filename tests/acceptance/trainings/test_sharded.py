"""Two ranks under FSDP2: what each sends of its shards is, put together in the collector, what the whole gradient is.

All kinds are trained by one pair of processes, watched and unwatched, which also compares shards bit for bit and
counts collectives: the agent issues none.
"""

import base64
import json
import math
from typing import Any

import numpy as np
import pytest

from support import PROGRAMS, warm
from support.agent.fixtures import complaints
from support.agent.recorded import spooling
from support.collectors import Collector
from support.ports import free_port
from support.programs import sharded

SCRIPT = PROGRAMS / "sharded.py"
STEPS = list(range(sharded.STEPS))
Read = dict[str, list[dict[str, list[float]]]]


@pytest.fixture(scope="module")
def read(module_collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Norm, absmax, update ratio and weight norm by kind, step and name, as the reference says."""
    out, port = tmp_path_factory.mktemp("shards") / "read.json", str(free_port())
    ranks = [
        warm.Process(
            warm.TRAINING, [str(SCRIPT), str(rank), port, str(out), module_collector.url], spooling(out.parent)
        )
        for rank in range(sharded.RANKS)
    ]
    said = []
    for rank in ranks:
        with rank.stdout as lines:
            said.append(lines.read())
    assert [rank.wait(60) for rank in ranks] == [0, 0], said
    assert "gradcanary" not in complaints("".join(said))
    found: Read = json.loads(out.read_text())
    return found


def asked(collector: Collector, kind: str, rest: str = "", **params: object) -> Any:
    return collector.get(f"/api/v1/runs/shards-{kind}{rest}", **params).json()


def drawn(line: dict[str, Any]) -> list[float]:
    found: list[float] = np.frombuffer(base64.b64decode(line["data"]), line["dtype"]).tolist()
    return found


def metric(collector: Collector, kind: str, name: str) -> list[float]:
    (found,) = asked(collector, kind, "/metrics", name=name)["metrics"]
    return drawn(found["max"])


@pytest.mark.loop(
    "FSDP2 (`fully_shard`), a sync in each or in the last micro-step only, clipping, mixed precision, hybrid meshes, "
    "CPU offload",
    caveat="verified with two processes; each rank sends its shards, also uneven and empty ones, the collector puts "
    "them together, and no collective is added. K without a sync in each micro-step needs a parameter in the outermost "
    "group, where one is unless all are wrapped further inside. The stored dtype is that after the reduction, and it "
    "says so",
)
@pytest.mark.parametrize("kind", sharded.KINDS)
def test_the_parts_together_are_the_whole(module_collector: Collector, read: Read, kind: str) -> None:
    layers = {layer["name"]: layer for layer in asked(module_collector, kind, "/layers")["layers"]}
    assert list(layers) == [name for name, _ in sharded.Model().named_parameters()]
    for place, stat in enumerate(("norm", "absmax")):
        for name in read[kind][0]:
            (series,) = asked(module_collector, kind, "/series", stat=stat, layer=name)["series"]
            expected = [step[name][place] for step in read[kind]]
            # bfloat16 holds 8 bits, and the reference has all.
            assert drawn(series["max"]) == pytest.approx(expected, rel=0.1 if kind == "low" else 1e-5), (stat, name)
    assert {layers[name]["state"] for name in layers.keys() - read[kind][0].keys()} == {"no_gradient"}
    assert {layers[name]["micro_steps"] for name in read[kind][0]} == {sharded.MICRO_STEPS}
    assert {layers[name]["accumulator"]["stored"] for name in read[kind][0]} == {"float32"}
    asked_for = "float32" if kind == "low" else None
    assert {layers[name]["accumulator"]["declared"] for name in read[kind][0]} == {asked_for}
    assert layers["first.weight"]["shape"] == [7, 16]


@pytest.mark.parametrize("kind", ["synced", "copies", *sharded.OFFLOADED])
def test_update_ratio_of_sharded_layers(module_collector: Collector, read: Read, kind: str) -> None:
    compared = 0
    for name in read[kind][0]:
        for stat, place in (("update_ratio", 2), ("weight_norm", 3)):
            (series,) = asked(module_collector, kind, "/series", stat=stat, layer=name)["series"]
            seen = [(value, step[name][place]) for value, step in zip(drawn(series["max"]), read[kind], strict=True)]
            seen = [each for each in seen if not math.isnan(each[0])]
            assert [each[0] for each in seen] == pytest.approx([each[1] for each in seen], rel=1e-5), (stat, name)
            compared += len(seen)
    assert compared >= sharded.STEPS


@pytest.mark.parametrize("kind", ["synced", "unsynced", *sharded.OFFLOADED])
def test_the_total_norm_and_the_loss(module_collector: Collector, read: Read, kind: str) -> None:
    totals = [math.hypot(*(norm for norm, *_ in step.values())) for step in read[kind]]
    assert metric(module_collector, kind, "total_norm") == pytest.approx(totals, rel=1e-5)
    assert len(metric(module_collector, kind, "loss")) == len(STEPS)
    assert metric(module_collector, "unsynced", "loss") == pytest.approx(metric(module_collector, "synced", "loss"))


@pytest.mark.usefixtures("read")
def test_a_number_that_all_ranks_have_alike_is_taken(module_collector: Collector) -> None:
    assert set(metric(module_collector, "summed", "alike")) == {3.0}
    for name in ("part", "loss"):
        assert asked(module_collector, "summed", "/metrics", name=name)["metrics"] == [], name


@pytest.mark.usefixtures("read")
def test_passes_of_the_next_model_are_counted_too(module_collector: Collector) -> None:
    """Of the second step, in which nothing but what is attached to the second model tells them."""
    layers = asked(module_collector, "stages", "/layers")["layers"]
    assert {layer["micro_steps"] for layer in layers if layer["state"] == "measured"} == {sharded.MICRO_STEPS}


def test_a_clip_is_seen(module_collector: Collector, read: Read) -> None:
    totals = [math.hypot(*(norm for norm, *_ in step.values())) for step in read["clipped"]]
    expected = [0.01 / total for total in totals]
    assert metric(module_collector, "clipped", "clip_factor") == pytest.approx(expected, rel=1e-3)
    assert metric(module_collector, "synced", "clip_factor") == [1.0] * len(STEPS)


@pytest.mark.usefixtures("read")
def test_the_run_says_that_it_is_sharded(module_collector: Collector) -> None:
    run = asked(module_collector, "synced")
    assert [each["rank"] for each in run["sessions"]] == [0, 1]
    assert run["state"] == "finished"
    assert run["gaps"] == []
    assert [fact["code"] for fact in run["facts"]] == ["sharded"]
    assert asked(module_collector, "copies")["facts"] == [], "each rank has all of it, and the first one sends"


@pytest.mark.loop(
    "FSDP1 (`FullyShardedDataParallel`)",
    k="not verified",
    names="`_flat_param`, or the model's",
    caveat="parts of the first rank only, and it says so",
)
@pytest.mark.usefixtures("read")
def test_unmergeable_shards_are_reported(module_collector: Collector) -> None:
    assert [fact["code"] for fact in asked(module_collector, "flat")["facts"]] == ["flat_shards"]
