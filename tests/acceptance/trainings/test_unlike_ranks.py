"""Ranks that train other layers than rank 0, in real processes: each sends its own, and the run has all of them."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select

from gradcanary import wire
from gradcanary_server.storage.schema import batch, session
from support import warm
from support.agent.fixtures import complaints
from support.agent.ranks import finish, said_by
from support.agent.recorded import spooling
from support.agent.scripted import until
from support.collectors import Collector
from support.ports import free_port
from support.programs import unlike_ranks

SCRIPT = str(Path(unlike_ranks.__file__))
Start = Callable[[str, Collector], list[warm.Process]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start two ranks of a kind; jobs train until there is a file ``done``."""

    def started(kind: str, collector: Collector) -> list[warm.Process]:
        port, done = str(free_port()), str(tmp_path / "done")
        return [
            warm.Process(warm.TRAINING, [SCRIPT, kind, str(rank), port, collector.url, done], spooling(tmp_path))
            for rank in range(2)
        ]

    return started


def finished(ranks: list[warm.Process], incident_of: str | None = None) -> None:
    """Wait until the ranks end well; they may have printed an incident of this rule, and nothing else."""
    assert "gradcanary" not in complaints("".join(finish(ranks)), incident_of)


def run_of(collector: Collector, name: str) -> dict[str, Any]:
    answer = collector.get(f"/api/v1/runs/{name}")
    return dict(answer.json()) if answer.status_code == 200 else {"facts": []}


def names_of(collector: Collector, run: str) -> list[str]:
    return [layer["name"] for layer in collector.get(f"/api/v1/runs/{run}/layers").json()["layers"]]


def measured(collector: Collector, run: str, layer: str) -> list[int]:
    """The steps with a number of a layer."""
    path = f"/api/v1/runs/{run}/series"
    answer = collector.get(path, stat="absmax", layer=layer, points=5_000).json()
    (series,) = answer["series"]
    counts = wire.uncolumn("i", series["count"]["data"])
    steps = wire.uncolumn("d", answer["steps"]["data"])
    return [int(step) for step, count in zip(steps, counts, strict=True) if count]


def is_admitted(collector: Collector, run: str) -> bool:
    return any(fact["code"] == "other_layers" for fact in run_of(collector, run)["facts"])


@pytest.mark.loop(
    "pipeline stages, and other ranks with layers of their own",
    caveat="verified with two processes; each rank sends its own layers, once the collector knows those of rank 0, "
    "too: the first seconds of the others are missing. A layer with the name of another rank's has a prefix, as "
    "`rank3.`. A step is shown when all of them have passed it. Loss, learning rates and logged numbers are rank 0's",
)
def test_a_collapse_in_the_second_stage_of_a_pipeline_names_its_layers(collector: Collector, start: Start) -> None:
    finished(start("pipeline", collector), incident_of="collapse")
    assert set(names_of(collector, "pipeline")) == {"embed.weight", "embed.bias", "head.weight", "head.bias"}
    first, second = (measured(collector, "pipeline", layer) for layer in ("embed.weight", "head.weight"))
    assert first == [*range(len(first))], "nothing of the first stage is lost when the second one joins"
    assert second == first[-len(second) :]
    assert len(second) >= unlike_ranks.HEALTHY + unlike_ranks.SICK
    listed = collector.get("/api/v1/incidents", run="pipeline").json()["incidents"]
    (incident,) = (each["id"] for each in listed if each["rule"] == "collapse")
    layers = collector.get(f"/api/v1/incidents/{incident}").json()["layers"]
    assert {each["name"] for each in layers} == {"head.weight", "head.bias"}
    assert run_of(collector, "pipeline")["state"] == "finished"


def test_two_jobs_of_one_launcher_are_both_shown(collector: Collector, start: Start, tmp_path: Path) -> None:
    ranks = start("jobs", collector)
    until(lambda: is_admitted(collector, "jobs") and measured(collector, "jobs", "extra.weight"))
    (tmp_path / "done").touch()
    finished(ranks)
    names = ["net.weight", "net.bias", "rank1.net.weight", "rank1.net.bias", "extra.weight", "extra.bias"]
    assert sorted(names_of(collector, "jobs")) == sorted(names)
    shapes = {each["name"]: each["shape"] for each in collector.get("/api/v1/runs/jobs/layers").json()["layers"]}
    assert (shapes["net.weight"], shapes["rank1.net.weight"]) == ([4, 8], [6, 8])
    (found,) = (each for each in run_of(collector, "jobs")["sessions"] if each["rank"] == 0)
    assert measured(collector, "jobs", "net.weight") == [*range(found["last_step"] + 1)]


def test_what_a_killed_rank_had_sent_is_kept(collector: Collector, start: Start, tmp_path: Path) -> None:
    ranks = start("killed", collector)
    until(lambda: is_admitted(collector, "killed") and measured(collector, "killed", "extra.weight"))
    ranks[1].send_signal(signal.SIGKILL)
    said_by(ranks[1])
    assert ranks[1].wait(60) == -signal.SIGKILL
    sent = acknowledged(collector, rank=1)
    until(lambda: acknowledged(collector, rank=0) >= sent)
    (tmp_path / "done").touch()
    finished(ranks[:1])
    shown = measured(collector, "killed", "extra.weight")
    kept = {step for step in (*shown, *waiting(collector)) if step >= shown[0]}
    assert sorted(kept) == [*range(shown[0], sent + 1)]
    first = measured(collector, "killed", "net.weight")
    assert first == [*range(len(first))]
    assert first[-1] >= shown[-1]


def waiting(collector: Collector) -> list[int]:
    """The steps of rank 1 in the log: in a batch of rank 0 that is not whole they wait until rank 1 is excluded."""
    engine = create_engine(collector.store_url)
    with engine.connect() as connection:
        joined = (session.c.run_id == batch.c.run_id) & (session.c.session == batch.c.session) & (session.c.rank == 1)
        query = select(batch.c.first_step, batch.c.last_step).join(session, joined).order_by(batch.c.seq)
        rows = connection.execute(query).all()
    engine.dispose()
    return [step for first, last in rows for step in range(first, last + 1)]


def acknowledged(collector: Collector, rank: int) -> int:
    """The last step that the collector has acknowledged to a rank."""
    (found,) = (each for each in run_of(collector, "killed")["sessions"] if each["rank"] == rank)
    return int(found["last_step"])
